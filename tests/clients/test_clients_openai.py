"""OpenAI's package: chat completions, completions, Responses, embeddings, models, errors."""

from typing import Any

import pytest
from place import Place, same

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

MESSAGES = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Name three colours."}]
CITY = {"city": {"type": "string", "maxLength": 12}}
PARAMETERS = {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": PARAMETERS}}
FLAT_TOOL = {"type": "function", "name": "weather", "description": "The weather of a city", "parameters": PARAMETERS}
GREEDY: dict[str, Any] = {"temperature": 0.0}


def client(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_chat_whole(place: Place):
    def ask(url: str, model: str) -> Any:
        answer = client(url).chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, **GREEDY)
        return answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage.completion_tokens

    assert same(place, ask)[2] > 0


def test_chat_stream_with_usage(place: Place):
    def ask(url: str, model: str) -> Any:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client(url).chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, **options, **GREEDY))
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        return text, chunks[-1].usage.completion_tokens, [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]

    same(place, ask)


def test_chat_two_answers_with_logprobs(place: Place):
    def ask(url: str, model: str) -> Any:
        answer = client(url).chat.completions.create(model=model, messages=MESSAGES, max_tokens=4, n=2, logprobs=True, top_logprobs=2)
        return [(choice.index, len(choice.logprobs.content)) for choice in answer.choices]

    same(place, ask)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_with_a_forced_tool(place: Place, stream: bool):
    def ask(url: str, model: str) -> Any:
        forced = {"type": "function", "function": {"name": "weather"}}
        asked = {"model": model, "messages": MESSAGES, "tools": [TOOL], "tool_choice": forced, "max_tokens": 60, **GREEDY}
        if not stream:
            (call,) = client(url).chat.completions.create(**asked).choices[0].message.tool_calls
            return call.function.name, call.function.arguments
        chunks = list(client(url).chat.completions.create(**asked, stream=True))
        calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
        return calls[0].function.name, "".join(call.function.arguments or "" for call in calls)

    assert same(place, ask)[0] == "weather"


def test_chat_with_a_json_schema(place: Place):
    def ask(url: str, model: str) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS, "strict": True}}
        answer = client(url).chat.completions.create(model=model, messages=MESSAGES, response_format=form, max_tokens=40, **GREEDY)
        return answer.choices[0].message.content

    same(place, ask)


def test_completions(place: Place):
    def ask(url: str, model: str) -> Any:
        answer = client(url).completions.create(model=model, prompt="Once upon a time", max_tokens=8, **GREEDY)
        return answer.choices[0].text, answer.usage.completion_tokens

    same(place, ask)


def test_responses_whole(place: Place):
    def ask(url: str, model: str) -> Any:
        answer = client(url).responses.create(
            model=model, input="Name three colours.", instructions="You are terse.", max_output_tokens=12, **GREEDY
        )
        return answer.output_text, answer.status, answer.usage.output_tokens

    same(place, ask)


def test_responses_stream(place: Place):
    def ask(url: str, model: str) -> Any:
        events = list(client(url).responses.create(model=model, input="Name three colours.", max_output_tokens=12, stream=True, **GREEDY))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        return text, [event.type for event in events], events[-1].response.usage.output_tokens

    same(place, ask)


def test_responses_with_a_forced_tool(place: Place):
    def ask(url: str, model: str) -> Any:
        forced = {"type": "function", "name": "weather"}
        answer = client(url).responses.create(
            model=model, input="Weather in Bergen?", tools=[FLAT_TOOL], tool_choice=forced, max_output_tokens=60, **GREEDY
        )
        return [(item.type, item.name, item.arguments) for item in answer.output if item.type == "function_call"]

    same(place, ask)


def test_responses_that_follow_each_other(place: Place):
    def ask(url: str, model: str) -> Any:
        api = client(url)
        first = api.responses.create(model=model, input="My name is Ada.", max_output_tokens=8, **GREEDY)
        second = api.responses.create(model=model, input="What is my name?", previous_response_id=first.id, max_output_tokens=8, **GREEDY)
        kept = api.responses.retrieve(first.id)
        return kept.output_text == first.output_text, second.usage.input_tokens, second.output_text

    assert same(place, ask)[0]


def test_responses_that_are_not_there(place: Place):
    same(place, lambda url, model: client(url).responses.retrieve("resp_nothing"), fails=True)
    same(place, lambda url, model: client(url).responses.create(model=model, input="x", previous_response_id="resp_no"), fails=True)


def test_models(place: Place):
    assert same(place, lambda url, model: [entry.id for entry in client(url).models.list()]) == [place.model]


def test_embeddings(place: Place):
    """The vLLM here serves a model of text: it has no embeddings, and answers 404 for the path. The gateway says so with 501."""

    def ask(url: str, model: str) -> Any:
        return len(client(url).embeddings.create(model=model, input=["a", "b"], encoding_format="float").data)

    if place.embedded:
        assert same(place, ask) == 2
        return
    import openai

    with pytest.raises(openai.APIStatusError) as caught:
        ask(place.gateway, place.model)
    assert (caught.value.status_code, caught.value.code) == (501, "unsupported_by_engine")


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "gpt-99"},
        {"max_tokens": -1},
        {"messages": []},
        {"messages": [{"role": "user", "content": "word " * 20000}]},
        {"temperature": "hot"},
    ],
    ids=["unknown model", "negative cap", "no messages", "too long", "no number"],
)
def test_errors(place: Place, fields: dict[str, Any]):
    if place.embedded and "temperature" in fields:
        pytest.skip("the embedded engine draws no tokens: it does not read the temperature")

    def ask(url: str, model: str) -> Any:
        return client(url).chat.completions.create(**({"model": model, "messages": MESSAGES, "max_tokens": 4} | fields))

    same(place, ask, fails=True)


def test_a_stream_that_the_client_leaves(place: Place):
    """The next request is served at once: nothing of the first is left in the engine."""

    def ask(url: str, model: str) -> Any:
        api = client(url)
        stream = api.responses.create(model=model, input="Tell a very long story.", max_output_tokens=900, stream=True)
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        stream.close()
        return api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=3, **GREEDY).usage.completion_tokens

    same(place, ask)
