"""An engine that refuses what it is sent at once (its key, its paths, its own limit) does not draw the requests to itself."""

from pathlib import Path

import pytest
from bad_engines import BadEngine, ClosingEngine, before, circuits, metric
from gateway_kit import MODEL, chat

from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo
from hmas.controller.gateway.instances import monitor
from hmas.controller.gateway.instances.circuit_breaker import FAILURES
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

REFUSED = [401, 403, 404, 429]


def refusing(status: int, **headers: str) -> BadEngine:
    engine = BadEngine()
    engine.status = status
    engine.headers = headers
    return engine


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", REFUSED)
async def test_the_request_is_served_elsewhere_and_the_engine_is_not_preferred(tmp_path: Path, status: int, stream: bool):
    bad, well = refusing(status), BadEngine()
    async with before(tmp_path, bad, well) as rig:
        answers = [await rig.post(chat(f"number {number}", tokens=1, stream=stream)) for number in range(6)]
        assert await metric(rig, 'hmas_engine_errors_total{instance="a"}') == 1.0
        assert await metric(rig, "hmas_retries_total") == 1.0
        (avoided,) = rig.events("engine.avoided")
        assert rig.balanced()
    assert [answer.status for answer in answers] == [200] * 6
    assert {answer.headers["x-hmas-instance"] for answer in answers} == {"b"}
    assert bad.posts == 1, "it is the emptiest, and yet it gets no other"
    assert avoided["subject"] == "a"
    assert str(status) in avoided["reason"]


@pytest.mark.parametrize("status", REFUSED)
async def test_refusals_count_against_it_once_another_engine_serves_the_request(
    tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(monitor, "AVOID_S", 0.0)
    monkeypatch.setattr(monitor, "SNAPSHOT_EVERY_S", 0.01)
    bad, well = refusing(status), BadEngine()
    async with before(tmp_path, bad, well) as rig:
        number = 0
        while not circuits(rig) and number < 500:
            number += 1
            assert (await rig.post(chat(f"number {number}", tokens=1))).status == 200
        assert circuits(rig)[0] == ("a", "closed", "open")
        assert bad.posts >= FAILURES


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("status", REFUSED)
async def test_a_refusal_that_all_give_is_the_answer(tmp_path: Path, status: int, engines: int, stream: bool):
    bad = [refusing(status, **{"Retry-After": "17"}) for _ in range(engines)]
    async with before(tmp_path, *bad) as rig:
        answers = [await rig.post(chat(f"number {number}", stream=stream)) for number in range(2 * FAILURES)]
        first, *_ = await rig.completions()
        assert circuits(rig) == [], "nobody is served better for it"
        assert rig.balanced()
    assert {answer.status for answer in answers} == {status}
    assert answers[0].error["message"] == "not for you"
    assert answers[0].headers.get("retry-after") == ("17" if status == 429 else None)
    assert (first.outcome, first.status) == (OutcomeKind.REJECTED, status)
    assert sum(engine.posts for engine in bad) == engines * len(answers), "each engine was asked once for each"


async def test_a_429_without_a_time_gets_one(tmp_path: Path):
    async with before(tmp_path, refusing(429)) as rig:
        answer = await rig.post(chat())
    assert answer.status == 429
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("ask", [chat(tokens=1), {"model": MODEL, "input": ["a"]}], ids=["chat", "embedding"])
async def test_a_503_with_a_time_is_an_engine_that_sheds_load(tmp_path: Path, ask: dict[str, object]):
    """As SGLang's `The request queue is full.`: it is well, and is not preferred for so long."""
    full = [refusing(503, **{"Retry-After": "1"}) for _ in range(2)]
    path = "/v1/chat/completions" if "messages" in ask else "/v1/embeddings"
    async with before(tmp_path, *full) as rig:
        answers = [await rig.post({**ask, "user": str(number)}, path=path) for number in range(2 * FAILURES)]
        assert circuits(rig) == []
        assert len(rig.events("engine.avoided")) == 2
    assert {(answer.status, answer.headers["retry-after"]) for answer in answers} == {(503, "1")}


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engines_own_503_keeps_its_time(tmp_path: Path, stream: bool):
    async with before(tmp_path, refusing(503, **{"Retry-After": "7"})) as rig:
        answer = await rig.post(chat(stream=stream))
    assert (answer.status, answer.headers["retry-after"], answer.error["message"]) == (503, "7", "not for you")


@pytest.mark.parametrize("body", [chat(), chat(stream=False)])
async def test_a_refusal_beside_an_engine_that_breaks_is_no_answer_for_the_client(tmp_path: Path, body: dict[str, object]):
    """Else an SDK would raise for a wrong key, and never try again."""
    broken, refused = ClosingEngine(closes=1), refusing(401)
    async with before(tmp_path, broken, refused) as rig:
        answer = await rig.post(body)
        assert (broken.posts, refused.posts) == (1, 1)
    assert (answer.status, answer.error["code"]) == (502, "engine_error")


async def test_refusals_that_differ_are_no_answer_for_the_client(tmp_path: Path):
    async with before(tmp_path, refusing(401), refusing(403)) as rig:
        answer = await rig.post(chat())
    assert (answer.status, answer.error["code"]) == (502, "engine_error")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "no such field"),
        (413, "too large"),
        (422, "no such value"),
        (404, "The model `x` does not exist."),
        (404, "Response with id 'resp_1' not found."),
    ],
)
async def test_a_clients_own_mistake_stays_its_own(tmp_path: Path, status: int, message: str):
    bad, other = refusing(status), BadEngine()
    bad.document = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    async with before(tmp_path, bad, other) as rig:
        answers = [await rig.post(chat(f"number {number}")) for number in range(2 * FAILURES)]
        assert circuits(rig) == rig.events("engine.avoided") == []
        assert await metric(rig, 'hmas_engine_errors_total{instance="a"}') == 0.0
    assert (answers[0].status, answers[0].error["message"]) == (status, message)
    assert bad.posts + other.posts == len(answers), "each was sent once"


@pytest.mark.parametrize(("status", "counted"), [(500, 1.0), (502, 1.0), (400, 0.0), (422, 0.0)])
async def test_a_failure_on_embeddings_counts_and_a_clients_mistake_does_not(tmp_path: Path, status: int, counted: float):
    async with before(tmp_path, refusing(status), ClosingEngine()) as rig:
        answer = await rig.post({"model": MODEL, "input": "x"}, "/v1/embeddings")
        found = [await metric(rig, f'hmas_engine_errors_total{{instance="{name}"}}') for name in "ab"]
    assert (answer.status, found) == (502 if counted else status, [counted, counted])


@pytest.mark.parametrize("status", REFUSED)
async def test_embeddings_are_served_elsewhere_too(tmp_path: Path, status: int):
    bad, well = refusing(status, **{"Retry-After": "17"}), BadEngine()
    async with before(tmp_path, bad, well) as rig:
        served = await rig.post({"model": MODEL, "input": "x"}, "/v1/embeddings")
        assert await metric(rig, "hmas_passthrough_retries_total") == 1.0
        assert await metric(rig, 'hmas_engine_errors_total{instance="a"}') == 1.0
        well.status, well.headers = status, bad.headers
        refused = await rig.post({"model": MODEL, "input": "y"}, "/v1/embeddings")
    assert (served.status, served.headers["x-hmas-instance"]) == (200, "b")
    assert (refused.status, refused.error["message"]) == (status, "not for you")
    assert refused.headers.get("retry-after") == ("17" if status == 429 else None)


def test_an_avoided_instance_is_the_second_choice_and_not_shut_out():
    scheduler = Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name=name, capacity_n_run=2) for name in ("a", "b")],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    scheduler.set_avoided(frozenset({"a"}))
    for number in range(4):
        request = Request(id=f"r{number}", tenant="t", model="m", arrival_s=0.0, prompt_tokens=5)
        scheduler.submit(request, Estimates(slo=Slo(ttft_ms=1e6, tpot_ms=1e6)), 0.0, 1.0)
    assert [dispatch.instance for dispatch in scheduler.dispatch(0.0)] == ["b", "b", "a", "a"]
    scheduler.set_avoided(frozenset({"a", "b"}))
    for number in range(2):
        scheduler.end(f"r{number}", OutcomeKind.CANCELLED, 1.0)
    last = Request(id="r9", tenant="t", model="m", arrival_s=1.0, prompt_tokens=5)
    scheduler.submit(last, Estimates(slo=Slo(ttft_ms=1e6, tpot_ms=1e6)), 1.0, 1.0)
    assert [dispatch.instance for dispatch in scheduler.dispatch(1.0)] == ["b"]
