"""The embedded engine speaks Responses and Messages: events and documents in their forms, tools, lengths, and responses that it keeps."""

from typing import Any

import openai
import orjson
import pytest
from openai.types.responses import ResponseIncompleteEvent
from typing_kit import known, of_type

TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def message(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], "sim": {"output_tokens": 5}} | fields


async def events(sim, path: str, document: dict[str, Any]) -> list[dict[str, Any]]:
    async with sim.session.post(sim.url + path, json=document | {"stream": True}) as response:
        assert response.status == 200
        body = await response.read()
    found = []
    for event in body.removesuffix(b"\n\n").split(b"\n\n"):
        name, data = event.split(b"\n")
        found.append(orjson.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


async def test_a_stream_of_a_response_is_its_whole_answer(sim):
    document = {"model": "tiny", "input": "hi", "sim": {"output_tokens": 5}}
    status, whole = await sim.post(RESPONSES, document)
    found = await events(sim, RESPONSES, document)
    ended = found[-1]["response"]
    assert status == 200
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"]
    assert (ended["output"][0]["content"], ended["usage"]) == (whole["output"][0]["content"], whole["usage"])
    assert (whole["status"], whole["usage"]["output_tokens"]) == ("completed", 5)


async def test_a_stream_of_a_message_is_its_whole_answer(sim):
    status, whole = await sim.post(MESSAGES, message())
    found = await events(sim, MESSAGES, message())
    assert status == 200
    assert "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta") == whole["content"][0]["text"]
    assert found[0]["message"]["usage"]["output_tokens"] == 0
    assert (found[-2]["delta"]["stop_reason"], found[-2]["usage"]) == (whole["stop_reason"], whole["usage"])
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("end_turn", 5)


async def test_a_cap_cuts_both(sim):
    _, response = await sim.post(RESPONSES, {"input": "hi", "max_output_tokens": 3, "sim": {"output_tokens": 5}})
    _, answer = await sim.post(MESSAGES, message(max_tokens=3))
    found = await events(sim, RESPONSES, {"input": "hi", "max_output_tokens": 3, "sim": {"output_tokens": 5}})
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 3)
    assert found[-1]["type"] == "response.incomplete"


async def test_tools(sim):
    flat = {"type": "function", "name": "weather", "parameters": TOOL_SCHEMA}
    asked = {"input": "hi", "tools": [flat], "tool_choice": {"type": "function", "name": "weather"}}
    _, response = await sim.post(RESPONSES, asked)
    (call,) = response["output"]
    found = await events(sim, RESPONSES, asked)
    assert (call["type"], call["name"], orjson.loads(call["arguments"])) == ("function_call", "weather", {"city": "text"})
    assert "".join(event["delta"] for event in found if event["type"] == "response.function_call_arguments.delta") == call["arguments"]
    tools = {"tools": [{"name": "weather", "input_schema": TOOL_SCHEMA}], "tool_choice": {"type": "any"}}
    fields = message(**tools)
    del fields["sim"]
    _, answer = await sim.post(MESSAGES, fields)
    (block,) = answer["content"]
    parts = [event["delta"]["partial_json"] for event in await events(sim, MESSAGES, fields) if event["type"] == "content_block_delta"]
    assert (block["type"], block["input"], answer["stop_reason"]) == ("tool_use", {"city": "text"}, "tool_use")
    assert orjson.loads("".join(parts)) == block["input"]


async def test_a_conversation_grows(sim):
    async with openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        first = await client.responses.create(model="tiny", input="hello", instructions="be brief", max_output_tokens=6)
        second = await client.responses.create(model="tiny", input="more", previous_response_id=first.id, max_output_tokens=6)
        kept = await client.responses.create(model="tiny", input="hello", store=False, max_output_tokens=6)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="tiny", input="more", previous_response_id=kept.id)
        streamed = await client.responses.create(model="tiny", input="hello", stream=True, max_output_tokens=6)
        last = of_type(ResponseIncompleteEvent, [event async for event in streamed][-1])
        assert (await client.responses.retrieve(last.response.id)).output_text
    assert known(second.usage).input_tokens > known(first.usage).output_tokens + 4
    assert second.previous_response_id == first.id


@pytest.mark.parametrize(
    ("path", "document", "status"),
    [
        (RESPONSES, b"{", 400),
        (RESPONSES, {"model": "tiny"}, 400),
        (RESPONSES, {"model": "other", "input": "hi"}, 404),
        (RESPONSES, {"input": "hi", "previous_response_id": "resp_x"}, 404),
        (RESPONSES, {"input": "word " * 4000}, 400),
        (MESSAGES, b"[]", 400),
        (MESSAGES, {"messages": [{"role": "user", "content": "hi"}]}, 400),
        (MESSAGES, message(model="other"), 404),
        (MESSAGES, message(messages=[]), 400),
        ("/v1/messages/count_tokens", b"{", 400),
    ],
)
async def test_mistakes(sim, path: str, document: Any, status: int):
    got, error = await sim.post(path, document)
    assert got == status
    assert error["error"]["message"]
    assert (error.get("type") == "error") == path.startswith(MESSAGES)


async def test_counted_tokens_are_those_of_the_request(sim):
    _, counted = await sim.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}], "system": "be brief"})
    _, answer = await sim.post(MESSAGES, message(system="be brief"))
    assert counted == {"input_tokens": answer["usage"]["input_tokens"]}
