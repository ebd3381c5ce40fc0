"""The embedded engine over a real socket: shapes of answers, ends, control and bad input."""

import asyncio
import base64
import struct
from typing import Any

import aiohttp
import orjson
import pytest
from typing_kit import known

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat(**fields):
    return {"model": "tiny", "messages": [{"role": "user", "content": "tell me something"}]} | fields


async def test_chat_stream_has_vllm_s_shape(sim):
    events = await sim.events(CHAT, chat(sim={"output_tokens": 3}))
    assert events[-1] == "[DONE]"
    role, *tokens = events[:-1]
    assert role["object"] == "chat.completion.chunk"
    assert role["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]
    assert len(tokens) == 3
    assert all(event["choices"][0]["delta"]["content"] for event in tokens)
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None, None, "stop"]
    assert {event["id"] for event in events[:-1]} == {role["id"]}
    assert all("usage" not in event for event in events[:-1])


async def test_usage_chunk_on_demand(sim):
    events = await sim.events(CHAT, chat(sim={"output_tokens": 5, "prompt_tokens": 100}, stream_options={"include_usage": True}))
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    assert "usage" not in events[1]
    events = await sim.events(CHAT, chat(sim={"output_tokens": 2}, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [0, 1, 2, 2]


async def test_whole_answers_and_stream_say_the_same(sim):
    document = chat(sim={"output_tokens": 8})
    status, whole = await sim.post(CHAT, document)
    assert status == 200
    assert whole["object"] == "chat.completion"
    events = await sim.events(CHAT, document)
    streamed = "".join(event["choices"][0]["delta"]["content"] for event in events[:-1])
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": streamed}
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 8


async def test_text_completions(sim):
    events = await sim.events(TEXT, {"prompt": "once", "sim": {"output_tokens": 2}})
    assert [event["object"] for event in events[:-1]] == ["text_completion"] * 2
    assert all(event["choices"][0]["text"].startswith(" ") for event in events[:-1])
    status, whole = await sim.post(TEXT, {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True})
    assert status == 200
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert whole["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_several_answers_to_one_prompt(sim, path):
    asked = chat(n=3, sim={"output_tokens": 4}) if path == CHAT else {"prompt": "once", "n": 3, "sim": {"output_tokens": 4}}
    status, whole = await sim.post(path, asked)
    texts = [choice["message"]["content"] if path == CHAT else choice["text"] for choice in whole["choices"]]
    assert (status, [choice["index"] for choice in whole["choices"]]) == (200, [0, 1, 2])
    assert len(set(texts)) == 3, "each answer has words of its own"
    assert whole["usage"]["completion_tokens"] == 12
    events = await sim.events(path, asked | {"stream_options": {"include_usage": True}})
    assert events.count("[DONE]") == 1
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["completion_tokens"] == 12
    streamed = ["", "", ""]
    ends = []
    for choice in (event["choices"][0] for event in events[:-2]):
        streamed[choice["index"]] += choice["delta"]["content"] if path == CHAT else choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert streamed == texts
    assert sorted(ends) == [0, 1, 2]


async def test_all_answers_of_an_aborted_request_end(sim):
    reading = asyncio.create_task(sim.events(CHAT, chat(n=2, sim={"output_tokens": 1500}), headers={"X-Request-Id": "abc"}))
    await sim.until(lambda: sim.model.running == 2)
    assert (await sim.post("/abort_requests", {"request_ids": ["abc"]}))[1] == {"aborted": ["abc"]}
    events = await reading
    assert [event["choices"][0]["finish_reason"] for event in events[-3:-1]] == ["abort", "abort"]
    assert sim.model.idle


@pytest.mark.parametrize(
    ("fields", "tokens", "finish"),
    [
        ({"max_tokens": 4, "sim": {"output_tokens": 9}}, 4, "length"),
        ({"max_completion_tokens": 4, "sim": {"output_tokens": 4}}, 4, "stop"),
        ({"max_tokens": 40, "sim": {"output_tokens": 9}}, 9, "stop"),
        ({"max_tokens": 7, "ignore_eos": True}, 7, "length"),
        ({"max_tokens": 2}, 2, "length"),
    ],
)
async def test_lengths_and_reasons(sim, fields, tokens, finish):
    _status, whole = await sim.post(CHAT, chat(**fields))
    assert (whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]) == (tokens, finish)


async def test_the_drawn_length_follows_from_the_prompt(sim):
    lengths = set()
    for _ in range(2):
        _status, whole = await sim.post(TEXT, {"prompt": "a prompt of its own", "min_tokens": 3, "max_tokens": 1000})
        lengths.add(whole["usage"]["completion_tokens"])
    assert len(lengths) == 1


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "days", "unit"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize("tokens", [None, 3, 200])
@pytest.mark.parametrize(("choice", "finish"), [("required", "tool_calls"), (NAMED, "stop")])
async def test_a_forced_tool_call_fits_its_schema(sim, choice, finish, tokens):
    document = chat(tools=[WEATHER], tool_choice=choice, **({"sim": {"output_tokens": tokens}} if tokens else {}))
    _status, whole = await sim.post(CHAT, document)
    message = whole["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert (message["content"], call["function"]["name"], call["type"]) == (None, "weather", "function")
    assert orjson.loads(call["function"]["arguments"]) == {"city": "text", "days": 2, "unit": "C"}
    assert whole["choices"][0]["finish_reason"] == finish
    if tokens:
        assert whole["usage"]["completion_tokens"] == tokens
    events = await sim.events(CHAT, document)
    deltas = [event["choices"][0]["delta"]["tool_calls"][0] for event in events[1:-1]]
    assert deltas[0]["function"]["name"] == "weather"
    assert deltas[0]["id"].startswith("call-")
    assert all("name" not in delta["function"] for delta in deltas[1:])
    assert "".join(delta["function"]["arguments"] for delta in deltas) == call["function"]["arguments"]


async def test_tools_left_to_the_model_are_answered_in_words(sim):
    _status, whole = await sim.post(CHAT, chat(tools=[WEATHER], tool_choice="auto", sim={"output_tokens": 2}))
    assert whole["choices"][0]["message"]["content"]


async def test_logprobs(sim):
    document = chat(logprobs=True, top_logprobs=2, sim={"output_tokens": 3})
    _status, whole = await sim.post(CHAT, document)
    content = whole["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
    assert all(entry["logprob"] < 0 and bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
    assert "".join(entry["token"] for entry in content) == whole["choices"][0]["message"]["content"]
    events = await sim.events(CHAT, document)
    assert [event["choices"][0]["logprobs"]["content"] for event in events[1:-1]] == [[entry] for entry in content]
    body = {"prompt": "x", "logprobs": 1, "sim": {"output_tokens": 2}}
    _status, whole = await sim.post(TEXT, body)
    logprobs = whole["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, len(logprobs["tokens"][0])]
    events = await sim.events(TEXT, body)
    assert [event["choices"][0]["logprobs"]["text_offset"] for event in events[:-1]] == [[0], [logprobs["text_offset"][1]]]


async def test_embeddings(sim):
    status, document = await sim.post("/v1/embeddings", {"model": "tiny", "input": ["a", "b", "a"]})
    assert status == 200
    vectors = [row["embedding"] for row in document["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1, abs=1e-5)
    _status, packed = await sim.post("/v1/embeddings", {"input": "a", "encoding_format": "base64"})
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(vectors[0])}f", raw)) == pytest.approx(vectors[0])
    wrong: list[dict[str, Any]] = [{}, {"input": 7}, {"input": []}, {"input": ["a", 7]}, {"input": "a", "model": "other"}]
    for bad in wrong:
        status, document = await sim.post("/v1/embeddings", bad)
        assert status in {400, 404}
        assert document["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b'{"messages": [', 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[]", 400, "object"),
        (chat(messages=[]), 400, "messages"),
        ({"model": "tiny"}, 400, "messages"),
        (chat(max_tokens="many"), 400, "max_tokens"),
        (chat(max_tokens=0), 400, "max_tokens"),
        (chat(stream="yes"), 400, "stream"),
        (chat(n=129), 400, "n: got 129; allowed: 1 to 128"),
        (chat(model="gpt-9"), 404, "gpt-9"),
        (chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), 400, "image_url"),
        (chat(messages=[{"role": "user", "content": "word " * 4000}]), 400, "maximum context length is 2048"),
        (chat(tool_choice="required"), 400, "tool_choice"),
        (chat(tool_choice="perhaps"), 400, "perhaps"),
        (chat(sim={"output_tokens": -1}), 400, "output_tokens"),
        (chat(sim={"tokens": 1}), 400, "tokens"),
        (chat(top_logprobs=99, logprobs=True), 400, "top_logprobs"),
    ],
)
async def test_bad_bodies_get_an_error_that_names_the_field(sim, body, status, word):
    got, document = await sim.post(CHAT, body)
    assert got == status
    assert word in document["error"]["message"]
    assert document["error"]["code"] == status
    assert sim.model.idle


@pytest.mark.parametrize("prompt", [None, [], ["a", "b"], 7, [1, "a"], {"a": 1}])
async def test_bad_prompts(sim, prompt):
    status, document = await sim.post(TEXT, {"prompt": prompt})
    assert (status, document["error"]["param"]) == (400, "prompt")


async def test_unknown_paths_get_the_error_document_too(sim):
    assert (await sim.post("/v1/nothing", {}))[0] == 404
    status, document = await sim.post("/v1/models", {})
    assert (status, document["error"]["code"]) == (405, 405)


async def test_an_answer_never_passes_the_context(sim):
    _status, whole = await sim.post(CHAT, chat(sim={"prompt_tokens": 2040, "output_tokens": 50}))
    assert whole["usage"]["completion_tokens"] == 8
    assert whole["choices"][0]["finish_reason"] == "length"


async def test_a_client_who_leaves_a_stream_is_aborted(sim):
    async with sim.session.post(sim.url + CHAT, json=chat(stream=True, sim={"output_tokens": 1500})) as response:
        await response.content.readany()
        assert sim.model.running == 1
        response.close()
    await sim.until(lambda: sim.model.idle)


async def test_a_client_who_leaves_the_queue_is_aborted(start_sim):
    sim = await start_sim(n_run=1)
    first = asyncio.create_task(sim.post(CHAT, chat(sim={"output_tokens": 1500})))
    await sim.until(lambda: sim.model.running == 1)
    second = asyncio.create_task(sim.post(CHAT, chat(sim={"output_tokens": 5})))
    await sim.until(lambda: sim.model.waiting == 1)
    second.cancel()
    await sim.until(lambda: sim.model.waiting == 0)
    assert sim.model.running == 1
    first.cancel()
    await sim.until(lambda: sim.model.idle)
    _status, metrics = await sim.get("/metrics")
    assert b'finished_reason="abort"} 2' in metrics


async def test_abort_by_request_id_ends_a_stream(sim):
    document = chat(stream=True, sim={"output_tokens": 1500})
    async with sim.session.post(sim.url + CHAT, json=document, headers={"x-request-id": "abc"}) as response:
        await response.content.readany()
        assert (await sim.post("/abort_requests", {"request_ids": ["abc", "other"]}))[1] == {"aborted": ["abc"]}
        events = sim.decode(b"data: " + (await response.read()).partition(b"data: ")[2])
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "abort"
    assert sim.model.idle
    assert (await sim.post("/abort_requests", {"request_ids": ["abc"]}))[1] == {"aborted": []}


async def test_abort_by_request_id_ends_a_whole_answer(sim):
    task = asyncio.create_task(sim.post(CHAT, chat(sim={"output_tokens": 1500}), headers={"x-request-id": "abc"}))
    await sim.until(lambda: sim.model.running == 1)
    assert (await sim.post("/abort_requests", {"request_ids": ["chatcmpl-abc"]}))[1] == {"aborted": ["chatcmpl-abc"]}
    status, whole = await task
    assert (status, whole["choices"][0]["finish_reason"]) == (200, "abort")
    assert whole["usage"]["completion_tokens"] < 1500


async def test_two_requests_of_one_id_are_both_served(sim):
    headers = {"x-request-id": "same"}
    answers = await asyncio.gather(*(sim.post(CHAT, chat(sim={"output_tokens": 20}), headers=headers) for _ in range(2)))
    assert [answer[1]["usage"]["completion_tokens"] for answer in answers] == [20, 20]


async def test_state_and_knobs(sim):
    _status, state = await sim.get("/sim/state")
    assert orjson.loads(state)["max_num_seqs"] == 16
    assert await sim.post("/sim/knobs", {"n_run": 2, "token_budget": 9999}) == (
        200,
        {"applied": {"n_run": 2}, "refused": {"token_budget": "9999: allowed 1 to 512, the value at start"}},
    )
    tasks = [asyncio.create_task(sim.post(CHAT, chat(sim={"output_tokens": 100}))) for _ in range(5)]
    await sim.until(lambda: sim.model.waiting == 3)
    assert sim.model.running == 2
    state = orjson.loads((await sim.get("/sim/state"))[1])
    assert (state["engine"], state["running"], state["waiting"], state["max_num_seqs"]) == ("sim-1", 2, 3, 2)
    await sim.post("/sim/knobs", {"n_run": 16})
    await asyncio.gather(*tasks)
    assert (await sim.post("/sim/knobs", {"n_run": "two"}))[0] == 400
    assert (await sim.post("/sim/knobs", b"{"))[0] == 400


async def test_metrics_bear_vllm_s_names(sim):
    await sim.post(CHAT, chat(sim={"output_tokens": 7, "prompt_tokens": 50}))
    _status, body = await sim.get("/metrics")
    lines = body.decode().splitlines()
    labels = '{engine="0",model_name="tiny"}'
    assert f"vllm:generation_tokens_total{labels} 7" in lines
    assert f"vllm:prompt_tokens_total{labels} 50" in lines
    assert f"vllm:num_requests_running{labels} 0" in lines
    assert 'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="stop"} 1' in lines


async def test_models_health_and_version(sim):
    assert (await sim.get("/health")) == (200, b"")
    (card,) = orjson.loads((await sim.get("/v1/models"))[1])["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 2048)
    assert orjson.loads((await sim.get("/version"))[1])["version"] == "sim/fast"


async def raw(port: int, head: str, body: dict) -> bytes:
    """One exchange by hand, to the connection's end."""
    data = orjson.dumps(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_the_stream_on_the_wire(sim):
    """Chunked framing by hand: one HTTP chunk a token, and an end."""
    answer = await raw(sim.port, f"POST {CHAT} HTTP/1.1\r\nConnection: close", chat(stream=True, sim={"output_tokens": 4}))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Transfer-Encoding: chunked" in head
    chunks = []
    while body:
        size, _, body = body.partition(b"\r\n")
        chunks.append(body[: int(size, 16)])
        assert body[int(size, 16) :][:2] == b"\r\n"
        body = body[int(size, 16) + 2 :]
    assert chunks.pop() == b""
    assert len(chunks) == 4
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert chunks[-1].endswith(b"data: [DONE]\n\n")


async def test_http_1_0_gets_a_plain_body(sim):
    answer = await raw(sim.port, f"POST {CHAT} HTTP/1.0", chat(stream=True, sim={"output_tokens": 2}))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert sim.decode(body)[-1] == "[DONE]"


async def test_a_connection_serves_several_requests(sim):
    for tokens in (1, 3, 2):
        events = await sim.events(CHAT, chat(sim={"output_tokens": tokens}))
        assert len(events) == tokens + 2
    assert len(known(sim.runner.server).connections) == 1


async def test_shutdown_lets_running_answers_end_and_refuses_new_ones(start_sim):
    sim = await start_sim()
    task = asyncio.create_task(sim.post(CHAT, chat(sim={"output_tokens": 40})))
    await sim.until(lambda: sim.model.running == 1)
    await sim.stop()
    assert (await task)[1]["usage"]["completion_tokens"] == 40
    with pytest.raises(aiohttp.ClientConnectorError):
        await sim.post(CHAT, chat())


async def test_many_streams_at_once_lose_nothing(sim):
    answers = await asyncio.gather(*(sim.events(CHAT, chat(sim={"output_tokens": 5 + i})) for i in range(60)))
    assert [len(events) - 2 for events in answers] == [5 + i for i in range(60)]
    assert sim.model.idle
