"""Anthropic's package: messages, streams, tools, counts of tokens, errors."""

from typing import Any

import pytest
from place import Place, same

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

MESSAGES = [{"role": "user", "content": "Name three colours."}]
CITY = {"city": {"type": "string", "maxLength": 12}}
SCHEMA = {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False}
TOOL = {"name": "weather", "description": "The weather of a city", "input_schema": SCHEMA}
GREEDY = {"temperature": 0.0}
"""This package has no argument for it any more."""


def client(url: str) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def test_whole(place: Place):
    def ask(url: str, model: str) -> Any:
        answer = client(url).messages.create(model=model, messages=MESSAGES, system="You are terse.", max_tokens=12, extra_body=GREEDY)
        return [block.text for block in answer.content], answer.stop_reason, answer.usage.output_tokens

    assert same(place, ask)[2] > 0


def test_stream(place: Place):
    def ask(url: str, model: str) -> Any:
        with client(url).messages.stream(model=model, messages=MESSAGES, max_tokens=12, extra_body=GREEDY) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        return text, final.stop_reason, final.usage.output_tokens

    same(place, ask)


def test_events_of_a_stream(place: Place):
    def ask(url: str, model: str) -> Any:
        stream = client(url).messages.create(model=model, messages=MESSAGES, max_tokens=6, stream=True, extra_body=GREEDY)
        return [event.type for event in stream]

    same(place, ask)


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_tool(place: Place, stream: bool):
    def ask(url: str, model: str) -> Any:
        asked = {"model": model, "messages": MESSAGES, "tools": [TOOL], "max_tokens": 60, "extra_body": GREEDY}
        asked["tool_choice"] = {"type": "tool", "name": "weather"}
        if stream:
            with client(url).messages.stream(**asked) as events:
                answer = events.get_final_message()
        else:
            answer = client(url).messages.create(**asked)
        return [(block.type, block.name, block.input) for block in answer.content if block.type == "tool_use"], answer.stop_reason

    # vLLM does not hold a named tool's arguments to their schema here: what SmolLM2-135M writes may be no object.
    same(place, ask, fails=False if place.embedded else None)


def test_a_tools_answer(place: Place):
    def ask(url: str, model: str) -> Any:
        talk = [
            {"role": "user", "content": "Weather in Bergen?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Bergen"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "rain, 4 degrees"}]},
        ]
        answer = client(url).messages.create(model=model, messages=talk, tools=[TOOL], max_tokens=12, extra_body=GREEDY)
        return [block.type for block in answer.content], answer.stop_reason, answer.usage.input_tokens

    same(place, ask)


def test_counted_tokens(place: Place):
    def ask(url: str, model: str) -> Any:
        return client(url).messages.count_tokens(model=model, messages=MESSAGES, system="You are terse.").input_tokens

    assert same(place, ask) > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "claude-99"},
        {"max_tokens": 0},
        {"messages": [{"role": "user", "content": "word " * 20000}]},
        {"messages": [{"role": "user", "content": 5}]},
    ],
    ids=["unknown model", "no tokens", "too long", "no content"],
)
def test_errors(place: Place, fields: dict[str, Any]):
    def ask(url: str, model: str) -> Any:
        return client(url).messages.create(**({"model": model, "messages": MESSAGES, "max_tokens": 4} | fields))

    same(place, ask, fails=True)
