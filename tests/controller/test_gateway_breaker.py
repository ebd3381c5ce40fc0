"""An engine that is well by its health check and fails what it is sent: left alone, tried with one request at a time, taken back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import Rig, chat, eventually, running
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.gateway.instances import circuit_breaker as module
from hmas.controller.gateway.instances.circuit_breaker import FAILURES, FIRST_WAIT_S, LONGEST_WAIT_S, CircuitBreaker
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings


def opened() -> CircuitBreaker:
    breaker = CircuitBreaker()
    for number in range(FAILURES):
        assert breaker.failed(number, 0.0, "500", 1.0) == (number == FAILURES - 1)
    return breaker


def test_it_opens_after_failures_in_a_row_and_half_opens_after_a_while():
    breaker = opened()
    assert (breaker.state, breaker.until_s) == ("open", 1.0 + FIRST_WAIT_S)
    assert not breaker.probe_when_due(1.9)
    assert breaker.probe_when_due(2.0)
    assert breaker.state == "half-open"
    assert breaker.succeeded(2.1)
    assert (breaker.state, breaker.failures) == ("closed", 0)


def test_a_request_that_is_served_in_between_starts_the_count_anew():
    breaker = CircuitBreaker()
    for number in range(10 * FAILURES):
        if number % FAILURES == 0:
            breaker.succeeded(float(number))
        assert not (number % FAILURES and breaker.failed(number, float(number), "500", float(number)))
    assert breaker.state == "closed"


def test_each_probe_that_fails_doubles_the_wait_up_to_a_bound():
    breaker, now_s, waits = opened(), 1.0, []
    for number in range(100, 107):
        waits.append(breaker.until_s - now_s)
        now_s = breaker.until_s
        assert breaker.probe_when_due(now_s)
        assert breaker.failed(number, now_s, "500", now_s)
    assert waits == [1.0, 2.0, 4.0, 8.0, LONGEST_WAIT_S, LONGEST_WAIT_S, LONGEST_WAIT_S]


def test_it_closes_when_an_answer_begins_and_stays_doubted_until_one_is_whole():
    breaker = opened()
    assert not breaker.began(0.5), "it was sent before the breaker opened"
    assert breaker.probe_when_due(2.0)
    assert not breaker.began(1.5)
    assert breaker.began(2.1)
    assert (breaker.state, breaker.doubted) == ("closed", True)
    assert not breaker.began(2.2)
    assert breaker.failed(50, 2.2, "broken off", 2.3), "one failure is enough"
    assert breaker.until_s - 2.3 == 2 * FIRST_WAIT_S
    assert breaker.probe_when_due(5.0)
    assert breaker.began(5.0)
    assert not breaker.succeeded(5.0), "it was closed before"
    assert (breaker.state, breaker.doubted, breaker.failures) == ("closed", False, 0)
    assert not breaker.failed(51, 5.1, "500", 5.2)


def test_what_was_sent_before_it_opened_says_nothing_of_how_it_is_now():
    breaker = opened()
    assert not breaker.succeeded(0.5)
    assert not breaker.failed(99, 0.5, "500", 1.5)
    breaker.probe_when_due(2.0)
    assert not breaker.succeeded(1.5)
    assert breaker.state == "half-open"


def test_the_same_request_over_and_over_neither_opens_it_nor_keeps_it_open():
    breaker = CircuitBreaker()
    for second in range(100):
        assert not breaker.failed(7, float(second), "500", float(second))
    breaker = opened()
    breaker.probe_when_due(2.0)
    assert not breaker.failed(0, 2.1, "500", 2.2)
    assert breaker.state == "half-open"


@given(st.lists(st.tuples(st.sampled_from(["served", "began", "failed", "look"]), st.integers(0, 200), st.floats(0, 3)), max_size=200))
def test_it_never_waits_longer_than_the_bound_and_what_it_keeps_is_bounded(script):
    breaker, now_s = CircuitBreaker(), 0.0
    for step, number, pause_s in script:
        now_s += pause_s
        if step == "served":
            breaker.succeeded(now_s)
        elif step == "began":
            breaker.began(now_s)
        elif step == "failed":
            breaker.failed(number, now_s, "500", now_s)
        else:
            breaker.probe_when_due(now_s)
        assert breaker.failures <= module.FAILED_KEPT
        assert breaker.state != "open" or breaker.until_s - now_s <= LONGEST_WAIT_S
        assert (breaker.failures >= FAILURES) == breaker.doubted
        assert breaker.doubted or breaker.state == "closed"


async def set_fault(rig: Rig, number: int, fault: str | None) -> None:
    async with rig.session.post(rig.sims[number].url + "/sim/fault", json={"fault": fault}) as response:
        assert response.status == 200


def told(rig: Rig) -> list[tuple[str, str, str]]:
    return [(event["subject"], event["before"], event["after"]) for event in rig.events("engine.circuit")]


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.1)
    monkeypatch.setattr(module, "LONGEST_WAIT_S", 0.2)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("fault", ["status:500", "html", "half-sse:0"])
async def test_an_engine_that_fails_what_it_is_sent_is_left_alone_and_taken_back(tmp_path: Path, fault: str):
    async with running(tmp_path, engines=2) as rig:
        await set_fault(rig, 0, fault)
        answers = [await rig.post(chat(f"number {number}", tokens=3)) for number in range(FAILURES + 3)]
        assert [answer.status for answer in answers] == [200] * len(answers), "the other engine took over"
        assert told(rig)[0] == ("sim-1", "closed", "open")
        (item,) = [item for item in (await rig.admin("GET", "/admin/engines")).json["engines"] if item["name"] == "sim-1"]
        assert item["circuit"] in {"open", "half-open"}
        # Requests come in all the while; one after the other is tried and fails there, and all are served.
        probed = [await rig.post(chat(f"probe {number}", tokens=3)) for number in range(40)]
        assert {answer.status for answer in probed} == {200}
        await eventually(lambda: ("sim-1", "open", "half-open") in told(rig))
        before = len(rig.sims[0].bodies)
        await set_fault(rig, 0, None)

        async def back() -> None:
            number = 0
            while told(rig)[-1] != ("sim-1", "half-open", "closed"):
                number += 1
                await rig.post(chat(f"again {number}", tokens=3))

        async with asyncio.timeout(20):
            await back()
        assert len(rig.sims[0].bodies) > before
        assert rig.balanced()


@pytest.mark.usefixtures("short_waits")
async def test_where_there_is_no_other_engine_requests_wait_for_the_probe(tmp_path: Path):
    async with running(tmp_path) as rig:
        await set_fault(rig, 0, "status:500")
        failed = [await rig.post(chat(f"number {number}")) for number in range(FAILURES)]
        assert {answer.status for answer in failed} == {500}
        assert told(rig) == [("sim-1", "closed", "open")]
        await set_fault(rig, 0, None)
        answers = await asyncio.gather(*(rig.post(chat(f"wave {number}", tokens=3)) for number in range(10)))
        assert {answer.status for answer in answers} == {200}
        assert told(rig) == [("sim-1", "closed", "open"), ("sim-1", "open", "half-open"), ("sim-1", "half-open", "closed")]
        assert rig.balanced()


@pytest.mark.usefixtures("short_waits")
async def test_the_others_need_not_wait_for_the_probes_whole_answer(tmp_path: Path):
    async with running(tmp_path) as rig:
        await set_fault(rig, 0, "status:500")
        for number in range(FAILURES):
            await rig.post(chat(f"number {number}"))
        await set_fault(rig, 0, None)
        probe = asyncio.create_task(rig.post(chat("a long answer", tokens=3000)))
        await eventually(lambda: told(rig)[-1:] == [("sim-1", "half-open", "closed")])
        answer = await rig.post(chat("a short one", tokens=3))
        assert answer.status == 200
        assert not probe.done(), "the short one was served beside the probe"
        probe.cancel()
        await eventually(lambda: not rig.gateway.manager.active)


async def test_one_client_that_repeats_itself_takes_no_engine_from_the_others(tmp_path: Path):
    async with running(tmp_path) as rig:
        await set_fault(rig, 0, "status:500")
        for _ in range(3 * FAILURES):
            assert (await rig.post(chat("what it cannot serve"))).status == 500
        assert told(rig) == []
        await set_fault(rig, 0, None)
        assert (await rig.post(chat("hello"))).status == 200


async def test_a_client_s_own_errors_are_no_failures(tmp_path: Path):
    async with running(tmp_path) as rig:
        await set_fault(rig, 0, "status:400")
        answers: list[Any] = [await rig.post(chat(f"number {number}")) for number in range(2 * FAILURES)]
        assert {answer.status for answer in answers} == {400}
        assert told(rig) == []


async def test_a_client_s_own_error_between_failures_shows_nothing_about_the_engine(tmp_path: Path):
    async with running(tmp_path) as rig:
        for number in range(FAILURES):
            await set_fault(rig, 0, "status:400")
            assert (await rig.post(chat("a mistake"))).status == 400
            await set_fault(rig, 0, "status:500")
            assert (await rig.post(chat(f"number {number}"))).status == 500
        assert told(rig)[0] == ("sim-1", "closed", "open")


def test_while_it_is_tried_one_request_more_goes_than_ran():
    scheduler = Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name="e", capacity_n_run=8)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    for number in range(3):
        request = Request(id=f"r{number}", tenant="t", model="m", arrival_s=0.0, prompt_tokens=5)
        scheduler.submit(request, Estimates(slo=Slo(ttft_ms=1e6, tpot_ms=1e6)), 0.0, 1.0)
    scheduler.set_probing("e", True)
    assert [dispatch.entry.request.id for dispatch in scheduler.dispatch(0.0)] == ["r0"]
    assert scheduler.dispatch(0.1) == []
    scheduler.set_probing("e", False)
    assert [dispatch.entry.request.id for dispatch in scheduler.dispatch(0.2)] == ["r1", "r2"]
