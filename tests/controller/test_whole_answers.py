"""Answers that are not streamed: their engine's pace by its own counters, what the TPOT guard makes of them, and simulations of both."""

import random
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import known

from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.tpot_guard import TpotGuard
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.instances.engine_count import SPAN_S, EngineCount
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.room import PRESSURE_LOW, is_half_empty, tpot_pressure
from hmas.controller.scheduling.instances.speed import InstanceSpeed
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.refusals import charged_tokens, completion_of
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import SHIPPED, InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.base import EngineSnapshot
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile

EVERY_S = 0.25


def read(at_s: float, tokens: int, prompts: int = 0, running: int = 4) -> EngineSnapshot:
    return EngineSnapshot(
        engine="a", taken_s=at_s, healthy=True, running=running, generation_tokens_total=tokens, prompt_tokens_total=prompts
    )


def counted(pace: InstanceSpeed, count: EngineCount, *, seconds: float, step_ms: float, running: int, prompt_tokens: int = 0) -> None:
    """An engine that decodes `running` sequences all the time and computes so many prompt tokens in each quarter of a second."""
    for number in range(round(seconds / EVERY_S) + 1):
        now_s = number * EVERY_S
        count.saw(read(now_s, round(running * 1000.0 * now_s / step_ms), number * prompt_tokens, running))
        if (found := count.take(now_s + 0.01)) is not None:
            pace.counted(found)


def test_the_pace_of_an_engine_that_is_not_heard_comes_from_its_counters():
    pace, count = InstanceSpeed(), EngineCount()
    counted(pace, count, seconds=SPAN_S - EVERY_S, step_ms=20.0, running=8)
    assert pace.token_ms(8.0) is None
    counted(pace, count, seconds=20.0, step_ms=20.0, running=8)
    assert pace.token_ms(8.0) == pytest.approx(20.0, rel=0.05)
    assert known(pace.token_ms(30.0)) > 20.0
    assert known(pace.best_ms()) < 20.0
    # The first sample of a stream takes its place.
    pace.decoded(35.0, sequences=8.0)
    assert pace.token_ms(8.0) == pytest.approx(35.0, rel=0.2)


def test_stops_for_prompts_are_part_of_the_pace_and_show_what_a_prompt_takes():
    """An engine of the demo's speed, stepped by hand: 0.157 ms for each prompt token."""
    profile, pace, count = load_profile("demo-small"), InstanceSpeed(), EngineCount()
    now_s, tokens, prompts, read_s = 0.0, 0, 0, 0.0
    for step in range(4000):
        running, prompt = 8 + step // 100 % 12, 1500 if step % 20 == 0 else 0
        now_s += (profile.step_ms + profile.decode_ms_per_seq * running + profile.prefill_ms_per_token * prompt) / 1000.0
        tokens, prompts = tokens + running, prompts + prompt
        if now_s >= read_s:
            count.saw(read(now_s, tokens, prompts, running))
            read_s = now_s + EVERY_S
            if (found := count.take(now_s + 0.01)) is not None:
                pace.counted(found)
    stop_ms = profile.prefill_ms_per_token * 1500
    assert pace.prefill_ms(1500, 0.0) == pytest.approx(stop_ms, rel=0.25)
    decode_ms = profile.step_ms + profile.decode_ms_per_seq * 14
    assert pace.token_ms(14.0) == pytest.approx(decode_ms + stop_ms / 20, rel=0.2)
    assert pace.best_ms() == pytest.approx(profile.step_ms, rel=0.2)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 500), st.integers(0, 5000), st.integers(0, 9)), max_size=60))
def test_whatever_the_counters_say_the_figures_are_sound(readings: list[tuple[float, int, int, int]]):
    """An engine that restarts counts from 0, and one whose clock stands still is read twice at one moment."""
    count, pace, now_s = EngineCount(), InstanceSpeed(), 0.0
    for later_s, tokens, prompts, running in readings:
        now_s += later_s
        count.saw(read(now_s, tokens, prompts, running))
        if (found := count.take(now_s + 0.01)) is not None:
            pace.counted(found)
            assert found.steps > 0.0
            assert known(pace.token_ms(3.0)) > 0.0
            assert pace.prefill_ms(100, 0.0) >= 0.0


def test_a_reading_of_the_same_moment_counts_later():
    """Whether the gateway's tick or its reading of an engine comes first there is chance."""
    one, other = EngineCount(), EngineCount()
    for number in range(int(SPAN_S / EVERY_S) + 1):
        one.saw(read(number * EVERY_S, 100 * number))
        other.saw(read(number * EVERY_S, 100 * number))
    assert one.take(SPAN_S) is None
    one.saw(read(SPAN_S + EVERY_S, 1000))
    assert one.take(SPAN_S + EVERY_S) == other.take(SPAN_S + 0.01)


def build() -> Scheduler:
    return Scheduler(
        settings=SchedulerSettings(tpot_guard=0.5, overdue="keep"),
        instances=[InstanceSpec(name="a", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )


def submit(made: Scheduler, name: str, *, prompt: int = 100, ttft_ms: float = 2000.0, tpot_ms: float = 40.0, at_s: float = 0.0) -> None:
    request = Request(id=name, tenant="t", model="m", arrival_s=at_s, prompt_tokens=prompt, stream=False)
    believed = Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms), output_tokens=100.0, output_tokens_upper=100.0, ttft_ms=0.5 * prompt)
    made.submit(request, believed, at_s)


@pytest.mark.parametrize(("known_pace", "joins"), [(False, True), (True, False)])
def test_a_whole_answer_in_flight_is_protected_once_the_pace_is_known(known_pace: bool, joins: bool):
    made = build()
    (one,) = made.instances.values()
    if known_pace:
        counted(one.pace, one.engine_count, seconds=4.0, step_ms=30.0, running=4)
    submit(made, "first")
    made.dispatch(0.0)
    submit(made, "long", prompt=9000)
    # The first is due 5960 ms after its arrival and lacks some 100 tokens of 30 ms: it cannot bear the 4500 ms of the other's prompt.
    assert bool(made.dispatch(0.1)) is joins
    submit(made, "short", prompt=1000)
    made.dispatch(0.1)
    assert "short" in one.running


def test_what_prompts_were_thought_to_take_is_forgotten_with_the_last_whole_answer():
    made = build()
    (one,) = made.instances.values()
    for name in ("first", "second"):
        submit(made, name, prompt=9000)
        made.dispatch(0.0)
    assert one.prompts.left_ms(0.0) == 9000.0
    made.end("first", OutcomeKind.COMPLETED, 1.0, 100)
    assert one.prompts.left_ms(1.0) > 0.0
    made.end("second", OutcomeKind.COMPLETED, 2.0, 100)
    assert (one.prompts.left_ms(2.0), one.prefill_tokens) == (0.0, 0)


def with_eight() -> tuple[Scheduler, Instance]:
    """Eight whole answers with ample targets are in flight on an instance that takes 20 ms a token for one, and 50 for eight."""
    made = build()
    (one,) = made.instances.values()
    counted(one.pace, one.engine_count, seconds=30.0, step_ms=20.0, running=1)
    counted(one.pace, one.engine_count, seconds=30.0, step_ms=50.0, running=8)
    for number in range(8):
        submit(made, f"{number}", prompt=10, tpot_ms=400.0)
    assert len(made.dispatch(0.0)) == 8
    return made, one


@pytest.mark.parametrize(("ttft_ms", "joins"), [(500.0, False), (4000.0, True)])
def test_a_whole_answer_may_be_slower_by_what_its_first_token_does_not_need(ttft_ms: float, joins: bool):
    made, _ = with_eight()
    # 99 tokens of 50 ms are 990 ms more than with 40: more than one target leaves beside 5 ms for the prompt, and less than the other.
    submit(made, "second", prompt=10, ttft_ms=ttft_ms)
    assert bool(made.dispatch(0.1)) is joins


@pytest.mark.parametrize(("step_ms", "pressure"), [(20.0, 0.34), (60.0, 1.0)])
def test_an_instance_that_makes_whole_answers_late_is_no_half_empty_one(step_ms: float, pressure: float):
    """100 tokens are due 5960 ms after the arrival. What an answer waits for in the queue is not its instance's doing."""
    made = build()
    (one,) = made.instances.values()
    counted(one.pace, one.engine_count, seconds=4.0, step_ms=step_ms, running=1)
    submit(made, "first", prompt=0)
    made.dispatch(1.0)
    assert tpot_pressure(one, 2.0) == 0.0, "without a step since then nothing shows what it has got"
    counted(one.pace, one.engine_count, seconds=1.25, step_ms=step_ms, running=1)
    assert tpot_pressure(one, 2.0) == pytest.approx(pressure, rel=0.08)
    assert tpot_pressure(one, 3.0) > tpot_pressure(one, 2.0), "it has lost a second"
    assert is_half_empty(one, 2.0) is (pressure < PRESSURE_LOW)


@pytest.mark.parametrize(("ttft_ms", "suits"), [(500.0, False), (4000.0, True)])
def test_the_fence_is_passed_only_where_whole_answers_in_flight_keep_their_target(ttft_ms: float, suits: bool):
    _, one = with_eight()
    assert TpotGuard(0.7).suits_all(one.running["0"].entry, one)
    slo = Slo(ttft_ms=ttft_ms, tpot_ms=40.0)
    one.running["1"].believe(Estimates(slo=slo, output_tokens=100.0, output_tokens_upper=100.0))
    one.running["1"].entry.request = msgspec.structs.replace(one.running["1"].entry.request, declared_slo=slo)
    strict = QueueEntry(Request(id="new", tenant="t", model="m", arrival_s=0.0, prompt_tokens=10), one.running["1"].entry.estimates, 9)
    # 100 tokens may take 44.6 or 79.6 ms each.
    assert TpotGuard(0.7).suits_all(strict, one) is suits


def test_a_whole_answer_that_breaks_off_costs_what_the_steps_of_its_engine_gave_it():
    made = build()
    (one,) = made.instances.values()
    for name in ("left", "failed", "long"):
        submit(made, name, prompt=0)
    made.dispatch(0.0)
    counted(one.pace, one.engine_count, seconds=1.25, step_ms=20.0, running=3)
    assert made.end("left", OutcomeKind.CANCELLED, 1.0).paid_tokens == pytest.approx(50, abs=13)
    assert made.end("failed", OutcomeKind.FAILED, 1.0).paid_tokens == 0
    counted(one.pace, one.engine_count, seconds=5.0, step_ms=20.0, running=1)
    ended = made.end("long", OutcomeKind.TIMED_OUT, 6.0)
    assert (ended.paid_tokens, ended.output_tokens) == (100, 0), "no more than was expected; it is no measured length"
    assert charged_tokens(ended) == 100


def test_a_whole_answer_that_nobody_counted_costs_what_was_expected():
    made = build()
    for name in ("unknown", "empty"):
        submit(made, name, prompt=20)
    made.dispatch(0.0)
    unknown, empty = made.end("unknown", OutcomeKind.COMPLETED, 1.0), made.end("empty", OutcomeKind.COMPLETED, 1.0, 0)
    assert [charged_tokens(ended) for ended in (unknown, empty)] == [120, 20]
    assert unknown.output_tokens == 0, "it is no measured length"


def test_a_simulated_whole_answer_is_heard_of_at_its_end_only():
    seen: list[tuple[str, float]] = []

    class Told(Scheduler):
        def progress(self, request_id: str, tokens: int, now_s: float) -> None:
            seen.append((request_id, now_s))
            super().progress(request_id, tokens, now_s)

    made = Told(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name="a", capacity_n_run=8)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    asked = [
        Request(id=name, tenant="t", model="m", arrival_s=0.0, prompt_tokens=50, max_output_tokens=20, stream=name == "stream")
        for name in ("stream", "whole")
    ]
    believed = Estimates(slo=Slo(ttft_ms=2000.0, tpot_ms=60.0))
    arrivals = [Arrival(request=one, estimate=lambda *_: believed, output_tokens=20) for one in asked]
    told: dict[str, bool] = {}

    def ends(ended: Ended, now_s: float) -> None:
        told[ended.entry.request.id] = completion_of(ended, now_s).stream

    records = simulate(iter(arrivals), {"a": EngineModel(load_profile("demo-small"))}, made, on_end=ends).records
    assert told == {"stream": True, "whole": False}
    assert {name for name, _ in seen} == {"stream"}
    stream, whole = records
    assert (stream.output_tokens, whole.output_tokens) == (20, 20)
    assert (stream.ttft_ms > 0.0, whole.ttft_ms, whole.tpot_ms) == (True, -1.0, -1.0)
    assert (whole.outcome, whole.slo_met) == (OutcomeKind.COMPLETED, True)


def _estimate(history: History, request: Request, _now_s: float) -> Estimates:
    return history.estimate(request)


def _learn(history: History, ended: Ended, now_s: float) -> None:
    history.learn(completion_of(ended, now_s))


@pytest.mark.slow
def test_past_capacity_whole_answers_are_served_in_time_which_the_engine_alone_would_not():
    good = {}
    for guard in (0.0, SHIPPED.tpot_guard):
        made = Scheduler(
            settings=msgspec.structs.replace(SHIPPED, tpot_guard=guard),
            instances=[InstanceSpec(name="a", capacity_n_run=64)],
            router=make_router("default"),
            policy="robust-edf",
        )
        history, dice = History(), random.Random(1)
        arrivals, at_s = [], 0.0
        for number in range(500):
            at_s += dice.expovariate(6.0)
            slo = Slo(ttft_ms=1000.0, tpot_ms=40.0)
            request = Request(id=f"{number}", tenant="t", model="m", arrival_s=at_s, prompt_tokens=600, declared_slo=slo, stream=False)
            output = min(1000, max(4, round(dice.lognormvariate(4.6, 0.9))))
            arrivals.append(Arrival(request=request, estimate=partial(_estimate, history), output_tokens=output))
        engines = {"a": EngineModel(load_profile("demo-small"))}
        records = simulate(iter(arrivals), engines, made, on_end=partial(_learn, history)).records
        good[guard] = sum(record.slo_met for record in records)
    assert good[SHIPPED.tpot_guard] > 1.5 * good[0.0], good
