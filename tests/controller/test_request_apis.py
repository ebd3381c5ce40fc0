"""One conversation in the bodies of three APIs: the control plane sees the same request in each."""

from dataclasses import fields
from typing import Any

import pytest

from hmas.controller.core.errors import BodyError
from hmas.controller.core.request_body import CHAT, Call, read_call

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PICTURE = "https://example.org/a.png"

AS_CHAT: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "max_tokens": 90,
    "response_format": {"type": "json_schema", "json_schema": {}},
    "messages": [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "What is the weather in Bergen?"},
        {"role": "assistant", "content": None, "tool_calls": []},
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
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city":"Bergen"}'},
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
