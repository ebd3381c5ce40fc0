"""A client's mistake is not the engine's: an error event of 4xx keeps its code and words, is tried once, and opens no circuit."""

import asyncio
from pathlib import Path
from typing import Any

import bad_engines
import orjson
import pytest
from aiohttp import web
from gateway_kit import MODEL, Answer, chat
from hypothesis import given
from hypothesis import strategies as st
from scripted_kit import before, breakers, events, only, stream_of

from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.instances.circuit_breaker import FAILURES
from hmas.controller.gateway.requests.engine_errors import Complaint, json_object, read_complaint, read_document

BIAS = {"message": "token_id(s) [999999] in logit_bias", "type": "BadRequestError", "param": "logit_bias", "code": 400}
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
TOKEN = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        ({"error": BIAS}, 400, BIAS["message"]),
        ({"object": "error", **BIAS}, 400, BIAS["message"]),
        ({"error": "too long", "code": "413"}, 413, "too long"),
        ({"error": {"message": "busy", "code": 503}}, 503, "busy"),
        ({"error": {"message": "long", "code": "context_length_exceeded"}}, 0, "long"),
        ({"error": {"message": "odd", "code": True}}, 0, "odd"),
        ({"error": {"message": "odd", "code": 200}}, 0, "odd"),
        ({"object": "error", "message": "out of memory"}, 0, "out of memory"),
    ],
)
def test_every_form_of_an_error_document_is_read(document: dict[str, Any], status: int, message: str):
    complaint = read_complaint(document)
    assert complaint is not None
    assert (complaint.status, complaint.message) == (status, message)
    assert complaint.blames_request == (400 <= status < 500)
    error = orjson.loads(complaint.body())["error"]
    assert error["message"] == message
    assert {"message", "type", "param", "code"} <= error.keys()
    assert error["type"]


@pytest.mark.parametrize("document", [TOKEN, {**TOKEN, "error": None}, {}])
def test_what_is_no_error_is_none(document: dict[str, Any]):
    assert read_complaint(document) is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.text(max_size=4), lambda inner: st.lists(inner, max_size=2)
)


@given(st.dictionaries(st.sampled_from(["error", "object", "message", "type", "param", "code"]), JSON_VALUES, max_size=6))
def test_an_odd_document_never_breaks_the_reader(document: dict[str, Any]):
    for wrapped in (document, {"error": document}):
        complaint = read_complaint(wrapped)
        if complaint is not None:
            assert complaint.status == 0 or 400 <= complaint.status <= 599
            assert orjson.loads(complaint.body())["error"]["type"]


READ = ["choices", "code", "error", "id", "object", "status", "stop_reason", "type", "usage"]
ANY_JSON = st.recursive(
    JSON_VALUES | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["finish_reason", "x"]), inner, max_size=2),
)


@given(ANY_JSON | st.dictionaries(st.sampled_from([*READ, "message", "detail"]), ANY_JSON, max_size=6), st.sampled_from([200, 400]))
def test_what_is_read_of_an_answer_is_what_it_says(document: Any, status: int):
    body = orjson.dumps(document)
    whole, read = json_object(body), read_document(status, body)
    if whole is None or status != 200 or read_complaint(whole) is not None:
        assert read == whole
        return
    assert read is not None
    assert {key: read[key] for key in read if key != "choices"} == {key: whole[key] for key in whole if key in READ[1:]}
    one, other = read.get("choices"), whole.get("choices")
    if isinstance(other, list):
        other = [{key: item[key] for key in item if key == "finish_reason"} if isinstance(item, dict) else item for item in other]
    assert one == other


def test_of_a_long_answer_no_more_is_built_than_is_read():
    choice = {"message": {"content": "a"}, "finish_reason": "stop", "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}
    answer = {"id": "x", "choices": [choice], "usage": {"completion_tokens": 1}, "data": [[0.5]]}
    told = {"id": "x", "choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    assert read_document(200, orjson.dumps(answer)) == told


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a": "\xff"}', b'{"a": 1', b'{"a": tru}', b"[" * 100_000, b'{"id": ' + b"[" * 100_000])
def test_an_answer_that_is_no_json_object_is_none(body: bytes):
    assert read_document(200, body) is None


def test_the_client_gets_the_whole_message_and_the_logs_a_part():
    complaint = Complaint({"message": "x" * 10_000}, 400)
    assert len(complaint.message) == 500
    assert len(orjson.loads(complaint.body())["error"]["message"]) == 10_000


@pytest.mark.parametrize("document", [{"error": BIAS}, {"object": "error", **BIAS}])
@pytest.mark.parametrize("first", [[], [ROLE]])
async def test_an_error_event_before_the_first_token_becomes_the_answer(tmp_path: Path, document: dict[str, Any], first: list[Any]):
    async with before(tmp_path, stream_of(*first, document), engines=2) as (rig, asked):
        answer: Answer = await rig.post(chat())
        kind, status = await only(rig)
        metrics = (await rig.admin("GET", "/metrics")).body.decode()
        assert breakers(rig) == {("closed", 0)}
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
    assert answer.error == BIAS
    assert (kind, status) == (OutcomeKind.REJECTED, 400)
    assert len(asked) == 1, "it was tried once"
    assert 'hmas_engine_errors_total{instance="e-' not in metrics


class SlowToRefuse(bad_engines.BadEngine):
    """Takes a while over a streamed request before it refuses it in the first event."""

    async def _answer(self, request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(0.15)
        await response.write(events({"error": BIAS}))
        return response


async def test_the_time_that_an_engine_takes_to_refuse_in_a_stream_is_not_the_gateways(tmp_path: Path):
    async with bad_engines.before(tmp_path, SlowToRefuse()) as rig:
        answer = await rig.post(chat())
    assert (answer.status, answer.error) == (400, BIAS)
    assert float(answer.headers["x-hmas-overhead-ms"]) < 100.0


async def test_a_plain_answer_of_200_with_an_error_is_the_error(tmp_path: Path):
    async with before(tmp_path, lambda _: (200, "application/json", orjson.dumps({"object": "error", **BIAS}))) as (rig, _):
        answer = await rig.post(chat(stream=False))
        assert await only(rig) == (OutcomeKind.REJECTED, 400)
    assert (answer.status, answer.error) == (400, BIAS)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_4xx_with_json_is_passed_on_byte_for_byte(tmp_path: Path, stream: bool):
    body = orjson.dumps({"object": "error", **BIAS})
    async with before(tmp_path, lambda _: (422, "application/json", body)) as (rig, asked):
        answer = await rig.post(chat(stream=stream))
        (completion,) = await rig.completions()
        assert breakers(rig) == {("closed", 0)}
    assert (answer.status, answer.body, len(asked)) == (422, body, 1)
    assert "logit_bias" in completion.reason


async def test_a_4xx_as_a_stream_keeps_its_status(tmp_path: Path):
    async with before(tmp_path, lambda _: (422, "text/event-stream", events({"error": {"message": "no"}}))) as (rig, asked):
        answer = await rig.post(chat())
        assert await only(rig) == (OutcomeKind.REJECTED, 422)
    assert (answer.status, answer.error["message"], len(asked)) == (422, "no", 1)


@pytest.mark.parametrize(("status", "gets"), [(413, 413), (404, 502)])
async def test_a_web_servers_page_blames_the_request_only_where_its_status_does(tmp_path: Path, status: int, gets: int):
    async with before(tmp_path, lambda _: (status, "text/html", b"<h1>Request Entity Too Large</h1>")) as (rig, _):
        answer = await rig.post(chat())
        assert breakers(rig) == {("closed", int(gets == 502))}
    assert answer.status == gets
    assert "Too Large" in answer.error["message"]


@pytest.mark.parametrize(("code", "counted"), [(400, 0), ("422", 0), (500, 1), (None, 1)])
async def test_after_the_first_token_only_an_error_of_the_engines_own_counts(tmp_path: Path, code: object, counted: int):
    error = {"error": {"message": "the grammar ran out", "code": code}}
    async with before(tmp_path, stream_of(ROLE, TOKEN, error)) as (rig, _):
        answer = await rig.post(chat())
        assert await only(rig) == (OutcomeKind.FAILED, 200)
        assert breakers(rig) == {("closed", counted)}
    assert answer.status == 200
    assert answer.events == [ROLE, TOKEN, error, "[DONE]"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_says_itself_that_it_is_full_is_well(tmp_path: Path, stream: bool):
    full = {"object": "error", "message": "The request queue is full.", "type": "ServiceUnavailable", "param": None, "code": 503}

    def answers(_: dict[str, Any]) -> tuple[int, str, bytes]:
        return (200, "text/event-stream", events({"error": full})) if stream else (503, "application/json", orjson.dumps(full))

    async with before(tmp_path, answers, engines=2) as (rig, asked):
        told = [await rig.post(chat(f"number {number}", stream=stream)) for number in range(2 * FAILURES)]
        assert breakers(rig) == {("closed", 0)}
        assert len(rig.events("engine.avoided")) == 2
        assert {one.outcome for one in await rig.completions()} == {OutcomeKind.REJECTED}
    assert {(answer.status, answer.headers["retry-after"]) for answer in told} == {(503, "1")}, "the gateway's own estimate"
    assert "The request queue is full." in told[0].body.decode()
    assert len(asked) == 2 * len(told), "each was tried elsewhere, too"


@pytest.mark.parametrize("code", [500, None, "weird"])
async def test_an_error_event_that_does_not_blame_the_request_is_tried_elsewhere(tmp_path: Path, code: object):
    async with before(tmp_path, stream_of({"error": {"message": "out of memory", "code": code}}), engines=2) as (rig, asked):
        answer = await rig.post(chat())
        assert await only(rig) == (OutcomeKind.FAILED, 502)
        assert breakers(rig) == {("closed", 1)}
    assert (answer.status, answer.error["code"], len(asked)) == (502, "engine_error", 2)


async def test_many_different_mistakes_leave_the_circuit_closed_and_others_served(tmp_path: Path):
    def answers(document: dict[str, Any]) -> tuple[int, str, bytes]:
        documents = [{"error": BIAS}] if "logit_bias" in document else [ROLE, TOKEN, END]
        return 200, "text/event-stream", events(*documents)

    async with before(tmp_path, answers) as (rig, asked):
        bad = [await rig.post(chat(f"mistake {number}", logit_bias={"999999": 1})) for number in range(3 * FAILURES)]
        good = await rig.post(chat("well formed"))
        assert breakers(rig) == {("closed", 0)}
        assert not rig.events("engine.circuit")
        assert rig.balanced()
    assert {answer.status for answer in bad} == {400}
    assert (good.status, good.text) == (200, "a")
    assert len(asked) == 3 * FAILURES + 1


async def test_embeddings_too(tmp_path: Path):
    async with before(tmp_path, stream_of({"error": BIAS}), engines=2) as (rig, asked):
        answer = await rig.post({"model": MODEL, "input": "x"}, "/v1/embeddings")
        assert breakers(rig) == {("closed", 0)}
    assert (answer.status, answer.error, len(asked)) == (400, BIAS, 1)
