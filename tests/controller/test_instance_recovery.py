"""An instance that serves again gets few requests at first, and twice as many each time they are answered."""

import math

import pytest

from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.instances.recovery import FIRST, LONGEST_S, Recovery
from hmas.controller.scheduling.scheduler import InstanceSpec, Scheduler, SchedulerSettings
from hmas.engines.base import EngineSnapshot


def scheduler_of(*names: str, waiting: int = 0, stream: bool = True) -> Scheduler:
    scheduler = Scheduler(
        settings=SchedulerSettings(tpot_guard=0.0),
        instances=[InstanceSpec(name=name, capacity_n_run=64) for name in names],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    for number in range(waiting):
        request = Request(id=f"r{number:03d}", tenant="t", model="m", arrival_s=0.0, prompt_tokens=5, stream=stream)
        scheduler.submit(request, Estimates(slo=Slo(ttft_ms=1e6, tpot_ms=1e6)), 0.0, 1.0)
    return scheduler


def report(scheduler: Scheduler, name: str, at_s: float, *, healthy: bool = True) -> None:
    scheduler.observe(EngineSnapshot(engine=name, taken_s=at_s, healthy=healthy))


def sent(scheduler: Scheduler, at_s: float) -> list[str]:
    return [dispatch.entry.request.id for dispatch in scheduler.dispatch(at_s)]


def test_a_queue_does_not_fall_on_an_instance_that_is_back():
    scheduler = scheduler_of("e", waiting=60)
    report(scheduler, "e", 0.0, healthy=False)
    assert sent(scheduler, 0.5) == []
    report(scheduler, "e", 1.0)
    waves = []
    for wave in range(6):
        new = sent(scheduler, 1.0 + wave)
        waves.append(len(new))
        assert sent(scheduler, 1.5 + wave) == [], "no more before one is answered"
        for request_id in new:
            scheduler.progress(request_id, 1, 1.9 + wave)
    assert waves[:4] == [FIRST, 8, 16, 32], "the fourth ends the limit"
    assert sum(waves) == 60


def test_answers_in_one_piece_lift_the_limit_too():
    scheduler = scheduler_of("e", waiting=20, stream=False)
    report(scheduler, "e", 0.0, healthy=False)
    report(scheduler, "e", 1.0)
    new = sent(scheduler, 1.0)
    assert len(new) == FIRST
    for request_id in new:
        scheduler.end(request_id, OutcomeKind.COMPLETED, 2.0, 5)
    assert len(sent(scheduler, 2.0)) == 3 * FIRST


def test_failed_requests_do_not_lift_the_limit():
    scheduler = scheduler_of("e", waiting=20)
    report(scheduler, "e", 0.0, healthy=False)
    report(scheduler, "e", 1.0)
    for request_id in sent(scheduler, 1.0):
        scheduler.end(request_id, OutcomeKind.FAILED, 2.0)
    assert len(sent(scheduler, 2.0)) == FIRST


def test_the_limit_ends_after_a_while_without_any_answer():
    scheduler = scheduler_of("e", waiting=30)
    report(scheduler, "e", 0.0, healthy=False)
    report(scheduler, "e", 1.0)
    assert len(sent(scheduler, 1.0)) == FIRST
    report(scheduler, "e", 1.0 + 0.9 * LONGEST_S)
    assert sent(scheduler, 10.0) == []
    report(scheduler, "e", 1.0 + LONGEST_S)
    assert len(sent(scheduler, 11.0)) == 26


def test_other_instances_take_what_the_one_that_is_back_may_not():
    scheduler = scheduler_of("up", "back", waiting=40)
    report(scheduler, "up", 0.0)
    report(scheduler, "back", 0.0, healthy=False)
    report(scheduler, "back", 1.0)
    where = [dispatch.instance for dispatch in scheduler.dispatch(1.0)]
    assert (where.count("back"), where.count("up")) == (FIRST, 36)


def test_an_instance_that_joins_begins_so_too_and_one_that_is_there_at_the_start_does_not():
    scheduler = scheduler_of("e", waiting=100)
    report(scheduler, "e", 0.0)
    assert len(sent(scheduler, 0.0)) == 64
    scheduler.add_instance(InstanceSpec(name="new", capacity_n_run=64), 1.0)
    report(scheduler, "new", 1.0)
    scheduler.set_draining("new", draining=False)
    assert len(sent(scheduler, 1.0)) == FIRST


@pytest.mark.parametrize("window", [1, 4, 6, 7, 1000])
def test_the_limit_ends_at_the_window(window):
    recovery = Recovery()
    assert not recovery.answered(window), "without a limit nothing changes"
    recovery.begin(0)
    answers = 0
    while recovery.limit < math.inf:
        assert recovery.answered(window)
        answers += 1
    assert answers == max(1, math.ceil((window - FIRST) / 2))


def test_a_probe_is_one_request_until_it_is_lifted():
    recovery = Recovery()
    recovery.probe(3)
    assert (recovery.limit, recovery.probed) == (4, True)
    assert not recovery.answered(100)
    recovery.seen(1e9)
    assert recovery.limit == 4
    recovery.begin(4)
    assert (recovery.limit, recovery.probed) == (4 + FIRST, False)
