"""Answers of engines in bytes or lists, and answers that are larger than the gateway holds: neither is a failure of the engine."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from bad_engines import BadEngine, before, metric
from gateway_kit import MODEL, chat
from scripted_kit import breakers

from hmas.controller.gateway.instances.circuit_breaker import FAILURES
from hmas.controller.gateway.requests import relay

BYTES = b"\0\1"
RANKED = b'[{"index": 0, "score": 1.0}]'
METADATA = '{"data":[{"index":0,"dtype":"float16","shape":[1],"start":0,"end":2}]}'


class BytesEngine(BadEngine):
    """Answers as vLLM does where the client asks for embeddings in bytes."""

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.posts += 1
        await request.read()
        return web.Response(body=BYTES, content_type="application/octet-stream", headers={"metadata": METADATA})


class CountingEngine(BadEngine):
    """Counts tokens and serves nothing."""

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        counts = request.path.endswith("/count_tokens")
        return web.json_response({"input_tokens": 1} if counts else self.document, status=200 if counts else 500)


class RerankEngine(BadEngine):
    """Answers a rerank as SGLang does: with a list."""

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.posts += 1
        await request.read()
        return web.Response(body=RANKED, content_type="application/json")


class StreamEngine(BadEngine):
    """Answers with a stream what nobody asked to have streamed."""

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.posts += 1
        await request.read()
        body = b'data: {"object":"list","data":[{"embedding":[1.0]}]}\n\n' * 2 + b"data: [DONE]\n\n"
        return web.Response(body=body, content_type="text/event-stream")


def embedding(text: str) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "encoding_format": "bytes"}


async def test_embeddings_in_bytes_are_an_answer(tmp_path: Path):
    first, second = BytesEngine(), BytesEngine()
    async with before(tmp_path, first, second) as rig:
        answers = [await rig.post(embedding(f"number {number}"), "/v1/embeddings") for number in range(FAILURES + 1)]
        assert breakers(rig) == {("closed", 0)}
        assert await metric(rig, "hmas_passthrough_retries_total") == 0.0
    found = {(answer.status, answer.headers["content-type"], answer.headers["metadata"], answer.body) for answer in answers}
    assert found == {(200, "application/octet-stream", METADATA, BYTES)}
    assert first.posts + second.posts == len(answers)


async def test_a_stream_of_embeddings_is_refused_before_the_client_sees_any_of_it(tmp_path: Path):
    streaming, well = StreamEngine(), BytesEngine()
    async with before(tmp_path, streaming, well) as rig:
        rig.gateway.fleet.instances["b"].passing = 3
        answer = await rig.post(embedding("x"), "/v1/embeddings")
        assert (answer.status, answer.body, answer.headers["x-hmas-instance"]) == (200, BYTES, "b")
        assert (streaming.posts, well.posts) == (1, 1)
        rig.gateway.fleet.instances["b"].passing = 0
    async with before(tmp_path / "alone", StreamEngine()) as rig:
        answer = await rig.post(embedding("x"), "/v1/embeddings")
        assert breakers(rig) == {("closed", 1)}
    assert (answer.status, answer.error["code"]) == (502, "engine_error")


async def test_a_list_is_an_answer_too(tmp_path: Path):
    first, second = RerankEngine(), RerankEngine()
    async with before(tmp_path, first, second) as rig:
        asked = [{"model": MODEL, "query": f"number {number}", "documents": ["a"]} for number in range(FAILURES + 1)]
        answers = [await rig.post(document, "/v1/rerank") for document in asked]
        assert breakers(rig) == {("closed", 0)}
    assert {(answer.status, answer.headers["content-type"], answer.body) for answer in answers} == {(200, "application/json", RANKED)}
    assert first.posts + second.posts == len(answers)


async def test_tokens_that_the_api_server_counts_show_nothing_about_the_engine(tmp_path: Path):
    """It counts them while the engine behind it fails every request."""
    engine = CountingEngine()
    async with before(tmp_path, engine) as rig:
        for number in range(FAILURES):
            document = {"model": MODEL, "messages": [{"role": "user", "content": f"number {number}"}]}
            counted = await rig.post(document, "/v1/messages/count_tokens")
            assert (counted.status, counted.json) == (200, {"input_tokens": 1})
            assert (await rig.post(chat(f"number {number}"))).status == 500
        assert {state for state, _ in breakers(rig)} == {"open"}


async def test_what_is_passed_through_goes_to_the_engine_with_less_to_do(tmp_path: Path):
    async with before(tmp_path, RerankEngine(), RerankEngine()) as rig:
        busy = rig.gateway.fleet.instances["a"]
        assert busy.snapshot is not None
        busy.snapshot = msgspec.structs.replace(busy.snapshot, running=1)
        answer = await rig.post({"model": MODEL, "query": "x", "documents": ["a"]}, "/v1/rerank")
    assert answer.headers["x-hmas-instance"] == "b"


async def test_an_engine_that_refuses_is_not_asked_first_again(tmp_path: Path):
    refusing, well = BadEngine(), RerankEngine()
    refusing.status, refusing.headers = 429, {"retry-after": "15"}
    async with before(tmp_path, refusing, well) as rig:
        instances = rig.gateway.fleet.instances
        # The other one is busier, as one is that serves what this one refuses.
        instances["b"].passing = 3
        answers = [await rig.post({"model": MODEL, "query": "x", "documents": ["a"]}, "/v1/rerank") for _ in range(3)]
        assert [event["subject"] for event in rig.events("engine.avoided")] == ["a"]
        instances["b"].passing = 0
    assert [answer.headers["x-hmas-instance"] for answer in answers] == ["b"] * 3
    assert refusing.posts == 1


@pytest.mark.parametrize("engine", [BytesEngine, RerankEngine])
async def test_a_completion_in_bytes_or_a_list_is_none(tmp_path: Path, engine: type[BadEngine]):
    async with before(tmp_path, engine()) as rig:
        answer = await rig.post(chat(stream=False))
        assert breakers(rig) == {("closed", 1)}
    assert (answer.status, answer.error["code"]) == (502, "engine_protocol_error")


@pytest.mark.parametrize(
    ("path", "document"), [("/v1/embeddings", embedding("x")), ("/v1/chat/completions", chat(stream=False))], ids=["passed", "queued"]
)
async def test_an_answer_that_is_too_large_is_nobodys_failure(
    tmp_path: Path, path: str, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay, "MAX_ANSWER_BYTES", len(BYTES) - 1)
    first, second = BytesEngine(), BytesEngine()
    async with before(tmp_path, first, second) as rig:
        answer = await rig.post(document, path)
        assert breakers(rig) == {("closed", 0)}
        assert rig.balanced()
    assert (answer.status, answer.error["code"]) == (502, "answer_too_large")
    assert "the engine's answer is larger than 1 bytes" in answer.error["message"]
    assert first.posts + second.posts == 1, "another engine's answer would be as large"
