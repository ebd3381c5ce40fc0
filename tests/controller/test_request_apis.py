"""One conversation in the bodies of three APIs: the control plane sees the same request in each."""

from dataclasses import fields
from typing import Any

import orjson
import pytest

from hmas.controller.core.errors import BodyError
from hmas.controller.core.request_body import CHAT, Call, read_call

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PICTURE = "https://example.org/a.png"
WEATHER = {"name": "weather", "arguments": '{"city":"Bergen"}'}

AS_CHAT: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "max_tokens": 90,
    "response_format": {"type": "json_schema", "json_schema": {}},
    "messages": [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "What is the weather in Bergen?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": WEATHER}]},
        {"role": "tool", "tool_call_id": "c", "content": "rain, 4 degrees"},
        {"role": "user", "content": [{"type": "text", "text": "And here?"}, {"type": "image_url", "image_url": {"url": PICTURE}}]},
    ],
}
AS_RESPONSE: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "max_output_tokens": 90,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "instructions": "You are terse.",
    "input": [
        {"role": "user", "content": "What is the weather in Bergen?"},
        {"type": "function_call", "call_id": "c", **WEATHER},
        {"type": "function_call_output", "call_id": "c", "output": "rain, 4 degrees"},
        {"role": "user", "content": [{"type": "input_text", "text": "And here?"}, {"type": "input_image", "image_url": PICTURE}]},
    ],
}
AS_MESSAGES: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "max_tokens": 90,
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "system": [{"type": "text", "text": "You are terse."}],
    "messages": [
        {"role": "user", "content": "What is the weather in Bergen?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Bergen"}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "rain, 4 degrees"}]},
                {"type": "text", "text": "And here?"},
                {"type": "image", "source": {"type": "url", "url": PICTURE}},
            ],
        },
    ],
}


def seen(call: Call) -> dict[str, Any]:
    return {field.name: getattr(call, field.name) for field in fields(Call) if field.name not in ("path", "document")}


@pytest.mark.parametrize(("path", "document"), [(RESPONSES, AS_RESPONSE), (MESSAGES, AS_MESSAGES)])
def test_the_same_conversation_is_the_same_request(path: str, document: dict[str, Any]):
    call = read_call(path, document)
    assert seen(call) == seen(read_call(CHAT, AS_CHAT))
    assert call.path == path
    assert (call.turns, call.tool_results, call.images, call.wants_json) == (5, 1, 1, True)


LONG = orjson.dumps({"text": "def f(a, b): return [a, b]  # as it was. " * 200}).decode()


def with_call(path: str, arguments: str) -> dict[str, Any]:
    """A question after which the model has called a tool, as a body of each API."""
    asked, system = {"role": "user", "content": "Write it."}, "Be brief. " * 60
    if path == RESPONSES:
        return {"model": "m", "instructions": system, "input": [asked, {"type": "function_call", "name": "edit", "arguments": arguments}]}
    if path == MESSAGES:
        calls: dict[str, Any] = {"content": [{"type": "tool_use", "name": "edit", "input": orjson.loads(arguments)}]}
        return {"model": "m", "system": system, "messages": [asked, {"role": "assistant", **calls}]}
    calls = {"content": None, "tool_calls": [{"type": "function", "function": {"name": "edit", "arguments": arguments}}]}
    return {"model": "m", "messages": [{"role": "system", "content": system}, asked, {"role": "assistant", **calls}]}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_what_the_model_called_is_prompt_but_no_text_for_agents(path: str):
    bare, call = (read_call(path, with_call(path, arguments)) for arguments in ("{}", LONG))
    as_text = read_call(CHAT, {"model": "m", "messages": [{"role": "assistant", "content": LONG}]})
    assert call.prompt_tokens - bare.prompt_tokens == pytest.approx(as_text.prompt_tokens, rel=0.05)
    assert seen(call) | {"prompt_tokens": 0} == seen(bare) | {"prompt_tokens": 0}
    assert (call.excerpt, call.history, call.turns) == ("Write it.", "", 3)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_histories_with_different_calls_have_different_blocks(path: str):
    one, other = (read_call(path, with_call(path, text), block_salt="t").blocks for text in (LONG, LONG.replace("[a, b]", "[b, a]")))
    assert one == read_call(path, with_call(path, LONG), block_salt="t").blocks
    assert len(one) == len(other) > len(LONG) // 256
    assert [pair[0] == pair[1] for pair in zip(one, other, strict=True)].index(False) == 2, "up to the call they are the same"


def test_every_kind_of_call_counts():
    def tokens(path: str, *messages: dict[str, Any]) -> int:
        return read_call(path, {"model": "m", "input" if path == RESPONSES else "messages": list(messages)}).prompt_tokens

    least = read_call(CHAT, {"model": "m", "messages": [{"role": "assistant", "content": LONG}]}).prompt_tokens
    for message in (
        {"function_call": {"name": "edit", "arguments": LONG}},
        {"content": "I do.", "tool_calls": [{"type": "custom", "custom": {"name": "edit", "input": LONG}}]},
        {"tool_calls": [{"function": {"name": "edit", "arguments": orjson.loads(LONG)}}]},
    ):
        assert tokens(CHAT, {"role": "assistant", **message}) >= least
    assert tokens(RESPONSES, {"type": "custom_tool_call", "name": "edit", "input": LONG}) >= least
    for kind in ("server_tool_use", "mcp_tool_use"):
        block = {"type": kind, "name": "edit", "input": orjson.loads(LONG)}
        assert tokens(MESSAGES, {"role": "assistant", "content": [block]}) >= least
    assert tokens(RESPONSES, {"type": "reasoning", "summary": [{"type": "summary_text", "text": LONG}]}) < 10, "templates leave it out"
    assert tokens(MESSAGES, {"role": "assistant", "content": [{"type": "thinking", "thinking": LONG}]}) < 10


def nested(levels: int) -> object:
    return orjson.loads(b"[" * levels + b"]" * levels)


WRONG: list[Any] = [5, "x", [], ["x"], [None], [{}], {"function": 5}, [{"function": 5}], [{"function": {"name": 5, "arguments": [5]}}]]


@pytest.mark.parametrize("calls", [*WRONG, *([{"function": {"arguments": nested(levels)}}] for levels in (300, 1000))])
def test_calls_of_a_wrong_form_are_left_to_the_engine(calls: object):
    for name in ("tool_calls", "function_call"):
        assert read_call(CHAT, {"model": "m", "messages": [{"role": "assistant", name: calls}]}, block_salt="t").prompt_tokens >= 1
    assert read_call(RESPONSES, {"model": "m", "input": [{"type": "function_call", "name": calls, "arguments": calls}]}).turns == 1
    block = {"type": "tool_use", "name": calls, "input": calls}
    assert read_call(MESSAGES, {"model": "m", "messages": [{"role": "assistant", "content": [block]}]}).turns == 1


def test_tools_count():
    plain = read_call(RESPONSES, {"model": "m", "input": "hi"})
    with_tools = read_call(RESPONSES, {"model": "m", "input": "hi", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]})
    assert (plain.has_tools, with_tools.has_tools) == (False, True)
    assert with_tools.prompt_tokens > plain.prompt_tokens
    tools = [{"name": "f", "input_schema": SCHEMA}]
    assert read_call(MESSAGES, {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools}).has_tools


def test_a_text_is_a_question_and_a_response_has_one_answer():
    call = read_call(RESPONSES, {"model": "m", "input": "say hi", "n": 5, "prompt_cache_key": "k", "priority": 3})
    assert (call.excerpt, call.turns, call.choices, call.cache_key, call.priority) == ("say hi", 1, 1, "k", 3)
    assert call.max_output_tokens is None
    assert read_call(RESPONSES, {"model": "m", "input": [], "previous_response_id": "resp_1"}).prompt_tokens >= 1


def test_a_tier_of_anthropic_is_no_tier_of_openai():
    document = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], "service_tier": "standard_only"}
    assert read_call(MESSAGES, document).excerpt == "hi"


@pytest.mark.parametrize(
    ("path", "document", "field"),
    [
        (RESPONSES, {}, "input"),
        (RESPONSES, {"input": 5}, "input"),
        (RESPONSES, {"input": ["hi"]}, "input[0]"),
        (RESPONSES, {"input": [{"role": 5}]}, "input[0].role"),
        (RESPONSES, {"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        (RESPONSES, {"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": 5}]}, "input[0].output"),
        (RESPONSES, {"input": "hi", "instructions": 5}, "instructions"),
        (RESPONSES, {"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
        (RESPONSES, {"input": "hi", "max_output_tokens": True}, "max_output_tokens"),
        (RESPONSES, {"input": "hi", "stream": "yes"}, "stream"),
        (MESSAGES, {}, "messages"),
        (MESSAGES, {"messages": []}, "messages"),
        (MESSAGES, {"messages": [5]}, "messages[0]"),
        (MESSAGES, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (MESSAGES, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (MESSAGES, {"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [5]}]}]},
            "messages[0].content[0].content[0]",
        ),
        (MESSAGES, {"messages": [{"role": "user", "content": "x"}], "system": 5}, "system"),
        (MESSAGES, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_mistake_has_the_name_of_its_field(path: str, document: dict[str, Any], field: str):
    with pytest.raises(BodyError) as caught:
        read_call(path, {"model": "m", **document})
    assert caught.value.field == field


def test_the_only_model_is_taken_where_none_is_named():
    assert read_call(RESPONSES, {"input": "hi"}, "only").model == "only"
    assert read_call(RESPONSES, {"input": "hi", "model": "m"}, "only").model == "m"
    with pytest.raises(BodyError, match="model"):
        read_call(RESPONSES, {"input": "hi"})
