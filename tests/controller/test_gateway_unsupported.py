"""What an engine does not serve is a clear error that counts against nobody; scores and ranks pass through, with errors in one form."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from bad_engines import metric
from gateway_kit import MODEL, chat, running
from scripted_kit import before, breakers, only

from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.requests.apis.registry import PASSED, api_of

MESSAGE = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
RESPONSE = {"model": MODEL, "input": "x"}
TWO = {"model": MODEL, "text_1": "a", "text_2": "b", "query": "a", "documents": ["b"], "input": "a"}
ABSENT = [
    (404, "application/json", b'{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}'),
    (404, "application/json", b'{"detail":"Not Found"}'),
    (404, "application/json", b'{"error":{"message":"POST /v1/x: Not Found","code":404}}'),
    (404, "text/plain", b"404 page not found\n"),
    (405, "application/json", b'{"detail":"Method Not Allowed"}'),
    (501, "application/json", b'{"error":{"message":"The model does not support this API","code":501}}'),
]
NAMED = [
    b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}',
    b'{"error":{"message":"Model tiny not found"}}',
    b'{"error":{"message":"Response with id \'r\' not found.","param":"response_id","code":404}}',
]


@pytest.mark.parametrize("found", ABSENT)
@pytest.mark.parametrize(
    ("path", "document"), [("/v1/responses", RESPONSE), ("/v1/messages", MESSAGE), ("/v1/rerank", TWO), ("/tokenize", TWO)]
)
async def test_a_path_that_the_engine_lacks(tmp_path: Path, found: tuple[int, str, bytes], path: str, document: dict[str, Any]):
    async with before(tmp_path, lambda _: found, engines=2) as (rig, asked):
        answer = await rig.post(document, path)
        assert breakers(rig) == {("closed", 0)}
        metrics = (await rig.get("/metrics")).body.decode()
        assert rig.balanced()
    assert (answer.status, answer.error["code"], len(asked)) == (501, "unsupported_by_engine", 2)
    assert answer.headers["x-should-retry"] == "false"
    assert "does not serve this API" in answer.error["message"]
    assert (answer.json.get("type") == "error") == (path == "/v1/messages")
    assert 'hmas_engine_errors_total{instance="e-' not in metrics


@pytest.mark.parametrize(("path", "document"), [("/v1/responses", RESPONSE), ("/v1/rerank", TWO)])
async def test_a_path_that_one_engine_lacks_is_asked_of_another(tmp_path: Path, path: str, document: dict[str, Any]):
    body = b'{"id":"r","object":"response","status":"completed","output":[]}'
    answers = iter([ABSENT[0], (200, "application/json", body)])
    async with before(tmp_path, lambda _: next(answers), engines=2) as (rig, asked):
        answer = await rig.post(document, path)
        assert breakers(rig) == {("closed", 0)}
        assert rig.balanced()
        assert not rig.events("engine.avoided")
    assert (answer.status, answer.body, len(asked)) == (200, body, 2)


@pytest.mark.parametrize("body", NAMED)
async def test_a_thing_that_is_not_found_is_the_engines_to_say(tmp_path: Path, body: bytes):
    async with before(tmp_path, lambda _: (404, "application/json", body)) as (rig, _):
        answer = await rig.post(RESPONSE, "/v1/responses")
        assert await only(rig) == (OutcomeKind.REJECTED, 404)
    assert (answer.status, answer.body) == (404, body)


async def test_chat_completions_too(tmp_path: Path):
    async with before(tmp_path, lambda _: ABSENT[0]) as (rig, _):
        answer = await rig.post(chat())
        assert await only(rig) == (OutcomeKind.REJECTED, 501)
    assert (answer.status, answer.error["code"]) == (501, "unsupported_by_engine")


async def test_the_embedded_engine_ranks_nothing(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(TWO, "/rerank")
        assert breakers(rig) == {("closed", 0)}
    assert (answer.status, answer.error["code"]) == (501, "unsupported_by_engine")


@pytest.mark.parametrize("path", PASSED)
async def test_what_passes_through_is_the_engines_own(tmp_path: Path, path: str):
    body = b'{"object":"list", "data": [{"score": 0.5}]}'
    async with before(tmp_path, lambda _: (200, "application/json", body)) as (rig, asked):
        answer = await rig.post(TWO, path)
        counts = rig.gateway.scheduler.counts()
    assert (answer.status, answer.body, asked) == (200, body, [TWO])
    assert counts.arrived == 0, "it is not queued"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"object":"error","message":"too long","type":"BadRequest","param":null,"code":400}', "too long"),
        (b'{"error":"too long","error_type":"Validation"}', "too long"),
        (b'{"detail":"too long"}', "too long"),
        (b'{"detail":[{"loc":["body","input"],"msg":"too long"}]}', '[{"loc":["body","input"],"msg":"too long"}]'),
        (b'{"message":"too long"}', "too long"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/score", "/v1/messages/count_tokens"])
async def test_errors_come_in_one_form(tmp_path: Path, path: str, body: bytes, message: str):
    async with before(tmp_path, lambda _: (422, "application/json", body)) as (rig, _):
        answer = await rig.post(TWO, path)
        assert breakers(rig) == {("closed", 0)}
    assert (answer.status, answer.error["message"]) == (422, message)
    if path.startswith("/v1/messages"):
        assert (answer.json["type"], answer.error["type"]) == ("error", "invalid_request_error")
    else:
        assert {"message", "type", "param", "code"} <= answer.error.keys()


async def test_an_error_in_the_right_form_stays_as_it_is(tmp_path: Path):
    body = orjson.dumps({"error": {"message": "no", "code": 400, "more": 1}})
    async with before(tmp_path, lambda _: (400, "application/json", body)) as (rig, _):
        assert (await rig.post(TWO, "/v1/embeddings")).body == body


async def test_an_engine_that_fails_is_counted(tmp_path: Path):
    body = b'{"detail":"out of memory"}'
    async with before(tmp_path, lambda _: (500, "application/json", body)) as (rig, _):
        answer = await rig.post(TWO, "/v1/rerank")
        assert breakers(rig) == {("closed", 1)}
    assert (answer.status, answer.error["message"]) == (500, "out of memory")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/score"])
async def test_a_5xx_with_json_is_tried_elsewhere(tmp_path: Path, path: str):
    body = b'{"object":"list","data":[]}'
    answers = iter([(500, "application/json", b'{"error":{"message":"out of memory"}}'), (200, "application/json", body)])
    async with before(tmp_path, lambda _: next(answers), engines=2) as (rig, asked):
        answer = await rig.post(TWO, path)
        assert await metric(rig, "hmas_passthrough_retries_total") == 1.0
        assert breakers(rig) == {("closed", 0), ("closed", 1)}
    assert (answer.status, answer.body, asked) == (200, body, [TWO, TWO])


async def test_a_5xx_that_all_give_is_the_answer(tmp_path: Path):
    body = orjson.dumps({"error": {"message": "out of memory", "code": 500, "more": 1}})
    async with before(tmp_path, lambda _: (500, "application/json", body), engines=2) as (rig, asked):
        answer = await rig.post(TWO, "/v1/embeddings")
        assert await metric(rig, "hmas_passthrough_retries_total") == 1.0
        assert breakers(rig) == {("closed", 1)}
    assert (answer.status, answer.body, len(asked)) == (500, body, 2)


def test_every_path_has_an_api():
    assert api_of("/v1/messages/other") is api_of("/v1/messages/count_tokens") is api_of("/v1/messages")
    assert api_of("/nowhere") is api_of("/v1/embeddings")
