"""The TPOT guard pauses where it makes requests late beside engines that can do all the work that comes."""

from typing import Any

import pytest

from hmas.controller.core.types import Controls, Estimates, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.guard_pause import CROWDED, PAUSE_S, GuardPause
from hmas.controller.scheduling.dispatch import PAUSED
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

PACE_MS, PROMPT_MS, OUTPUT = 20.0, 20.0, 32.0


def build(**settings: Any) -> Scheduler:
    made = Scheduler(
        settings=SchedulerSettings(overdue="demote", **settings),
        instances=[InstanceSpec(name="a", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    for _ in range(200):
        made.instances["a"].pace.prefilled(PROMPT_MS, 128)
        made.instances["a"].pace.decoded(PACE_MS, 1.0, 32.0)
    return made


def entry(number: int, at_s: float, *, sequences: int = 1, ttft_ms: float = 100.0, prompt: int = 128, output: float = OUTPUT) -> QueueEntry:
    request = Request(id=str(number), tenant="t", model="m", arrival_s=at_s, prompt_tokens=prompt, sequences=sequences)
    estimates = Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=25.0), output_tokens=sequences * output, ttft_ms=PROMPT_MS, tpot_ms=PACE_MS)
    return QueueEntry(request, estimates, number)


def after(rps: float, late: float, *, seconds: float = 20.0, sequences: int = 1, prompt: int = 128) -> GuardPause:
    """A queue to which requests came at this rate until now (0 s), of which a share became late."""
    made, owed = GuardPause(), 0.0
    for number in range(round(rps * seconds)):
        now_s = number / rps - seconds
        made.asked(entry(number, now_s, sequences=sequences, prompt=prompt), now_s)
        owed += late
        if owed >= 1.0:
            owed -= 1.0
            made.became_late(now_s)
    return made


@pytest.mark.parametrize(
    ("rps", "late", "prompt", "expected"),
    [
        # 0.64 s of decoding and 0.02 of a prompt: at 3 requests a second 2.2 are in flight, the load is 0.14, its square 0.02.
        (3.0, 0.1, 128, True),
        (3.0, 0.02, 128, False),
        # With prompts of 0.1 s it is 0.31 at 2.5 a second, its square 0.1.
        (2.5, 0.06, 640, False),
        (2.5, 0.2, 640, True),
        # At 4.5 requests a second 3.6 would be in flight, at 10 a second 12, and at 16 a second 39.
        (4.5, 1.0, 128, False),
        (10.0, 1.0, 128, False),
        (16.0, 1.0, 128, False),
        # At 20 a second the engine cannot do it.
        (20.0, 1.0, 128, False),
    ],
)
def test_it_begins_where_more_are_late_than_the_load_explains(rps: float, late: float, prompt: int, expected: bool) -> None:
    made = after(rps, late, prompt=prompt)
    made.look(list(build().instances.values()), 0.0)
    assert made.active is expected
    assert (made.sequences > 0.0) is expected
    if expected:
        load = rps * (PROMPT_MS * prompt / 128 + 0.04 * OUTPUT * PACE_MS) / 1000.0
        assert made.sequences == pytest.approx(rps * OUTPUT * PACE_MS / 1000.0 / (1.0 - load), rel=0.1)


def test_each_answer_of_a_request_is_a_sequence():
    one, four = after(1.0, 0.5), after(1.0, 0.5, sequences=4)
    for made in (one, four):
        made.look(list(build().instances.values()), 0.0)
    assert four.sequences > 4.0 * one.sequences > 0.0


def test_it_ends_and_begins_again_while_requests_are_late():
    made, instances = after(3.0, 0.5), list(build().instances.values())
    states = []
    for now_s in (0.0, PAUSE_S - 0.2, PAUSE_S):
        made.look(instances, now_s)
        states.append(made.active)
    for number in range(30):
        made.asked(entry(number, PAUSE_S + number / 3), PAUSE_S + number / 3)
        made.became_late(PAUSE_S + number / 3)
    made.look(instances, PAUSE_S + 10.0)
    assert [*states, made.active] == [True, True, False, True]


def test_an_engine_that_fills_up_ends_it_early_and_for_a_while():
    made, scheduler = after(3.0, 0.5), build(tpot_guard=0.0)
    instances = list(scheduler.instances.values())
    made.look(instances, 0.0)
    for number in range(CROWDED + 1):
        one = entry(number, 0.0, ttft_ms=1e6)
        scheduler.submit(one.request, one.estimates, 0.0)
    assert len(scheduler.dispatch(0.0)) == CROWDED + 1
    made.look(instances, 0.2)
    assert not made.active
    for number in range(100):
        made.asked(entry(number, 10.0), 10.0)
        made.became_late(10.0)
    made.look(list(build().instances.values()), 10.0)
    assert not made.active


def test_a_pause_lets_late_requests_go_beside_as_many_as_are_expected_and_others_until_it_is_crowded():
    made, scheduler = after(3.0, 0.5), build(tpot_guard=0.0)
    (instance,) = scheduler.instances.values()
    assert not made.lets_go(instance, late=False)
    made.look([instance], 0.0)
    lets_go = []
    for number in range(CROWDED + 2):
        lets_go.append([made.lets_go(instance, late=True), made.lets_go(instance, late=False)])
        one = entry(number, 0.0, ttft_ms=1e6)
        scheduler.submit(one.request, one.estimates, 0.0)
        scheduler.dispatch(0.0)
    assert [late for late, _ in lets_go] == [beside <= made.sequences for beside in range(CROWDED + 2)]
    assert [on_time for _, on_time in lets_go] == [True] * (CROWDED + 1) + [False]


def test_an_engine_that_each_sequence_makes_much_slower_begins_none():
    """Alone a request has 20 ms a token, as in the others' case: each further one adds 4 ms to all."""
    made, scheduler = after(2.5, 0.1), build()
    pace = scheduler.instances["a"].pace
    for number in range(400):
        sequences = 1.0 + number % 6
        pace.decoded(16.0 + 4.0 * sequences, sequences, 32.0)
    assert pace.token_ms(1.0) == pytest.approx(PACE_MS, rel=0.15)
    made.look(list(scheduler.instances.values()), 0.0)
    assert not made.active
    made.look(list(build().instances.values()), 0.0)
    assert made.active


def test_nothing_known_of_an_engine_begins_none():
    made = after(3.0, 0.5)
    unknown = Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name="a", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    made.look(list(unknown.instances.values()), 0.0)
    made.look([], 1.0)
    assert not made.active


def held(made: Scheduler) -> list[tuple[float, str, str]]:
    """Beside a request that just keeps its target, long prompts come twice a second: what goes when, and what had held it."""
    first, sent = entry(0, 0.0), []
    made.submit(first.request, first.estimates, 0.0)
    for tick in range(1, 120):
        now_s = tick / 10
        made.progress("0", int(now_s / 0.0249), now_s)
        if tick % 5 == 0:
            one = entry(tick, now_s, prompt=2000, output=10.0)
            made.submit(one.request, one.estimates, now_s)
        made.expire(now_s)
        sent += [(now_s, one.entry.request.id, one.relieved) for one in made.dispatch(now_s)]
    return sent


def test_what_the_guard_holds_goes_in_a_pause_and_says_so():
    sent = held(build(tpot_guard=0.5))
    began_s = next(now_s for now_s, _, why in sent if why == PAUSED)
    before = [name for now_s, name, _ in sent if now_s < began_s]
    # The guard gives way by itself for one request, after 3 s.
    assert (before, began_s) == (["0", "35"], pytest.approx(4.5))
    # All that come from then on go at once, and those that are late already beside them, until the engine is crowded.
    came = {str(tick) for tick in range(50, 90, 5)}
    assert {name: now_s for now_s, name, _ in sent if name in came} == {name: int(name) / 10 for name in came}
    assert {name for now_s, name, _ in sent if now_s >= began_s} >= {"5", "10", "15", "20", "25", "30", "45"}


def test_what_a_window_makes_late_says_nothing_of_the_guard():
    made = build(tpot_guard=0.5)
    made.set_controls("a", Controls(n_run=1))
    assert held(made) == [(0.1, "0", "")]
    made.set_controls("a", Controls(n_run=64))
    # So the guard does not pause once it is what holds them.
    assert made.dispatch(12.0) == []
    made.set_tpot_guard(0.0)
    assert made.dispatch(12.0)
