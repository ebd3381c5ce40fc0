"""What bad input gets: the right status and a message that names the field, the value and what is allowed."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from gateway_kit import MODEL, chat, gateway_config, running

MESSAGES = [{"role": "user", "content": "hi"}]

CASES: dict[str, tuple[str, bytes | dict[str, Any], str | None, str]] = {
    "half a document": ("chat", b'{"model": "tiny", "mess', None, "not valid JSON"),
    "an empty body": ("chat", b"", None, "not valid JSON"),
    "not UTF-8": ("chat", b'{"model": "\xff"}', None, "not valid JSON"),
    "NaN": ("chat", b'{"model": NaN}', None, "not valid JSON"),
    "a list": ("chat", b"[1]", None, "JSON array"),
    "too deep": ("chat", b"[" * 5000 + b"]" * 5000, None, "not valid JSON"),
    "model of the wrong type": ("chat", {"model": 5, "messages": MESSAGES}, "model", "model is 5"),
    "no messages": ("chat", {"model": MODEL}, "messages", "at least one message"),
    "messages is a text": ("chat", {"model": MODEL, "messages": "hi"}, "messages", "a list"),
    "a message is a text": ("chat", {"model": MODEL, "messages": ["hi"]}, "messages[0]", "an object"),
    "a message without role": ("chat", {"model": MODEL, "messages": [{"content": "x"}]}, "messages[0].role", "user"),
    "content is a number": ("chat", {"model": MODEL, "messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a text"),
    "a part is a number": (
        "chat",
        {"model": MODEL, "messages": [{"role": "user", "content": [5]}]},
        "messages[0].content[0]",
        "content part",
    ),
    "stream is a text": ("chat", {"model": MODEL, "messages": MESSAGES, "stream": "yes"}, "stream", "true or false"),
    "max_tokens is zero": ("chat", {"model": MODEL, "messages": MESSAGES, "max_tokens": 0}, "max_tokens", "from 1"),
    "max_tokens is a text": ("chat", {"model": MODEL, "messages": MESSAGES, "max_tokens": "nine"}, "max_tokens", "whole number"),
    "n is true": ("chat", {"model": MODEL, "messages": MESSAGES, "n": True}, "n", "whole number"),
    "priority is a fraction": ("chat", {"model": MODEL, "messages": MESSAGES, "priority": 0.5}, "priority", "whole number"),
    "an unknown service tier": ("chat", {"model": MODEL, "messages": MESSAGES, "service_tier": "gold"}, "service_tier", "flex"),
    "tools is an object": ("chat", {"model": MODEL, "messages": MESSAGES, "tools": {}}, "tools", "a list"),
    "no prompt": ("text", {"model": MODEL}, "prompt", "token ids"),
    "prompt is an object": ("text", {"model": MODEL, "prompt": {}}, "prompt", "token ids"),
    "prompt holds null": ("text", {"model": MODEL, "prompt": [None]}, "prompt", "token ids"),
}
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}


async def test_malformed_bodies_get_400(tmp_path: Path):
    async with running(tmp_path) as rig:
        for case, (path, document, param, says) in CASES.items():
            answer = await rig.post(document, PATHS[path])
            assert answer.status == 400, case
            assert answer.error["param"] == param, case
            assert says in answer.error["message"], case
            assert answer.error["type"] == "invalid_request_error", case
            assert answer.headers["x-request-id"], case
        assert rig.gateway.scheduler.counts().arrived == 0
        assert rig.sims[0].bodies == []


async def test_a_body_that_is_too_deep_to_be_written_is_refused_where_it_has_to_be(tmp_path: Path):
    body = b'{%b"messages":[{"role":"user","content":"hi"}],"sim":{"output_tokens":2},"metadata":%b}'
    deep, flat = b"[" * 300 + b"]" * 300, b"[" + b"[]," * 300 + b"[]]"
    async with running(tmp_path) as rig:
        refused = await rig.post(body % (b"", deep))
        passed = await rig.post(body % (b"", flat))
        await rig.post(body % (b'"model":"tiny",', deep))
        assert len(rig.sims[0].bodies) == 2
        assert rig.sims[0].bodies[1] == body % (b'"model":"tiny",', deep), "it is sent as it came"
        assert rig.balanced()
    assert (refused.status, refused.error["code"]) == (400, "invalid_body")
    assert "too deeply for model to be written into it; allowed: at most 254 levels" in refused.error["message"]
    assert passed.status == 200


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms", "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms"])
async def test_bad_slo_headers_get_400(tmp_path: Path, name: str):
    async with running(tmp_path) as rig:
        for value in ["soon", "", "-5", "0", "nan", "inf", "1e99", "12ms"]:
            answer = await rig.post(chat(), headers={name: value})
            assert answer.status == 400, value
            assert answer.error["param"] == name
            assert "milliseconds" in answer.error["message"]


async def test_other_bad_headers_get_400(tmp_path: Path):
    async with running(tmp_path) as rig:
        session = await rig.post(chat(), headers={"x-session-id": "s" * 200})
        label = await rig.post(chat(), headers={"x-gateway-inference-fairness-id": "a b"})
    assert (session.status, session.error["param"]) == (400, "x-session-id")
    assert (label.status, label.error["param"]) == (400, "x-gateway-inference-fairness-id")


async def test_an_unknown_model_gets_404_and_the_list(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(chat() | {"model": "gpt-99"})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert MODEL in answer.error["message"]


async def test_unknown_paths_and_methods(tmp_path: Path):
    async with running(tmp_path) as rig:
        path = await rig.get("/v2/chat")
        method = await rig.get("/v1/chat/completions")
        posted = await rig.post({}, "/v1/models")
    assert (path.status, path.error["code"]) == (404, "unknown_path")
    assert "/v1/chat/completions" in path.error["message"]
    assert (method.status, method.headers["allow"]) == (405, "POST")
    assert (posted.status, posted.headers["allow"]) == (405, "GET")


async def test_an_oversized_body_gets_413(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(max_body_bytes=4096)) as rig:
        stated = await rig.post(chat("x" * 5000))

        async def pieces():
            for _ in range(6):
                yield b" " * 1000

        async with rig.session.post(rig.url + "/v1/chat/completions", data=pieces()) as response:
            unstated = orjson.loads(await response.read())
            assert response.status == 413
    assert (stated.status, stated.error["code"]) == (413, "request_too_large")
    assert "4096" in stated.error["message"]
    assert unstated["error"]["code"] == "request_too_large"


async def test_a_prompt_beyond_the_context_is_the_engines_to_refuse(tmp_path: Path):
    """The engine knows its context; its own error document is passed on unchanged."""
    async with running(tmp_path) as rig:
        answer = await rig.post(chat(sim={"prompt_tokens": 9000, "output_tokens": 4}))
        (completion,) = await rig.completions()
        assert rig.balanced()
    assert answer.status == 400
    assert answer.headers["x-hmas-instance"] == "sim-1"
    assert "error" in answer.json
    assert completion.outcome == "rejected"
    assert not completion.slo_met


async def test_what_is_not_http_gets_a_json_error(tmp_path: Path):
    async with running(tmp_path) as rig:
        host, port = rig.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert orjson.loads(body)["error"]["code"] == "malformed_http"


async def test_large_bodies_are_asked_for(tmp_path: Path):
    """`Expect: 100-continue`, as curl sends it: a yes before a body that fits, a 413 at once before one that does not."""
    body = orjson.dumps(chat(stream=False))
    async with running(tmp_path, gateway=gateway_config(max_body_bytes=4096)) as rig:
        host, port = rig.url.removeprefix("http://").split(":")
        for length, first in ((len(body), b"HTTP/1.1 100 Continue\r\n"), (9999, b"HTTP/1.1 413 ")):
            reader, writer = await asyncio.open_connection(host, int(port))
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % length)
            assert (await reader.readline()).startswith(first)
            if length == len(body):
                writer.write(body)
                assert await reader.readline() == b"\r\n"
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.transport.abort()
