"""Statera: calibrated bounds, windows within their limits, no wind-up, settling, operators, restarts."""

from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from control_kit import completion, instance, short_view
from hypothesis import given
from hypothesis import strategies as st

from hmas.agents.statera.conformal import LengthCalibrator
from hmas.agents.statera.model import StateraModel
from hmas.agents.statera.recent_misses import InstanceMisses
from hmas.controller.core.messages import ControlAction, ShortView
from hmas.controller.core.types import OutcomeKind


def last_n_run(actions, default=0):
    return actions[-1].n_run if actions else default


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.3])
def test_conformal_coverage(epsilon):
    rng = np.random.default_rng(7)
    calibrator, covered, asked = LengthCalibrator(epsilon), 0, 0
    for number in range(4000):
        real = int(rng.lognormal(4.5, 0.8)) + 1
        bound = calibrator.add_tokens(300)
        if bound is not None and number > 300:
            asked += 1
            covered += real <= 90.0 + bound
        calibrator.learn(completion(number, float(number), output_tokens=real))
    assert covered / asked == pytest.approx(1.0 - epsilon, abs=0.025)


def test_conformal_bounds_follow_a_shift():
    calibrator = LengthCalibrator(0.1)
    for number in range(2000):
        calibrator.learn(completion(number, float(number), output_tokens=100))
    before = calibrator.add_tokens(300)
    for number in range(2000, 4000):
        calibrator.learn(completion(number, float(number), output_tokens=900))
    assert before == pytest.approx(10.0, abs=5)
    assert calibrator.add_tokens(300) == pytest.approx(810.0, abs=5)


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 50), st.integers(0, 400), st.integers(0, 500), st.floats(0, 1.2), st.integers(1, 300), st.floats(0, 1)),
        min_size=1,
        max_size=60,
    )
)
def test_outputs_stay_in_bounds_whatever_comes_in(steps):
    model, n_run = StateraModel(n_run_min=2, period_s=0.25), 16
    for number, (pressure, in_flight, queued, kv, ceiling, violations) in enumerate(steps):
        now_s = 100.0 + 0.25 * number
        seen = instance(
            tpot_pressure=pressure, in_flight=in_flight, n_run=n_run, kv_committed=kv, capacity_n_run=ceiling, max_token_budget=2048
        )
        view = short_view(now_s, instances=[seen], queued=queued, utilization={"i0": max(pressure, kv)}, tpot_violation_rate=violations)
        for action in model.observe(view, now_s):
            assert min(2, ceiling) <= action.n_run <= ceiling
            assert 0 <= action.token_budget <= 2048
            n_run = action.n_run


TOKENS = 100
STEP_S = 0.25


def settle(
    model: StateraModel,
    *,
    slope_ms: float,
    base_ms: float,
    slo_ms: float,
    seconds: float,
    from_s: float = 0.0,
    n_run: int = 16,
    late_s: float = 0.0,
    guarded: bool = True,
) -> list[int]:
    """A closed loop with the affine plant tpot(n) = base + slope n under a queue that never empties; returns the windows over time.

    A request's TPOT is the plant's mean over the time that it decoded, so what ends now tells of what was in flight then.
    """
    windows: list[int] = []
    tpots: list[float] = []
    under_way = deque[ShortView]()
    for step in range(int(seconds / STEP_S)):
        now_s = from_s + STEP_S * step
        tpots.append(base_ms + slope_ms * n_run)
        decode_s, back, tokens = 0.0, 0, 0.0
        while tokens < TOKENS and back < len(tpots):
            back += 1
            decode_s += STEP_S
            tokens += 1000.0 * STEP_S / tpots[-back]
        ended = []
        if tokens >= TOKENS:
            tpot_ms = 1000.0 * decode_s / tokens
            total_ms = 100.0 + tpot_ms * (TOKENS - 1)
            for part in range(max(1, round(n_run * STEP_S / decode_s))):
                number = round(1000 * now_s) * 1000 + part
                ended.append(
                    completion(
                        number,
                        now_s,
                        arrival_s=now_s - total_ms / 1000,
                        queue_ms=0.0,
                        ttft_ms=100.0,
                        total_ms=total_ms,
                        tpot_ms=tpot_ms,
                        tpot_slo_ms=slo_ms,
                        output_tokens=TOKENS,
                        running=n_run,
                    )
                )
        pressure = sum(tpots[-max(1, back) :]) / max(1, back) / slo_ms
        seen = instance(tpot_pressure=pressure, in_flight=n_run, n_run=n_run, kv_committed=0.1, guard_enabled=guarded)
        under_way.append(short_view(now_s, instances=[seen], queued=50, utilization={"i0": pressure}, recent=ended))
        while under_way and now_s - under_way[0].sent_s >= late_s:
            n_run = last_n_run(model.observe(under_way.popleft(), now_s), n_run)
        windows.append(n_run)
    return windows


@pytest.mark.parametrize(("slope_ms", "base_ms"), [(0.5, 10.0), (0.2, 15.0), (1.5, 2.0)])
def test_it_settles_near_the_target_and_stays(slope_ms, base_ms):
    slo_ms = 40.0
    windows = settle(StateraModel(period_s=0.25), slope_ms=slope_ms, base_ms=base_ms, slo_ms=slo_ms, seconds=60.0)
    tail = windows[-80:]
    holds = (slo_ms - base_ms) / slope_ms
    assert max(tail) <= 1.1 * holds + 1, "beyond what the target bears"
    assert min(tail) >= 0.55 * holds, "far below it"
    assert max(tail) - min(tail) <= max(3, 0.25 * holds), "it does not come to rest"


@pytest.mark.slow
@pytest.mark.parametrize("late_s", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("steeper", [0.25, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("guarded", [True, False])
def test_no_plant_and_no_delay_makes_it_swing_for_good(steeper, late_s, guarded):
    """Without noise, so that what swings is the loop: the last minute stays within a tenth of its mean, or one request."""
    plant = {"slope_ms": 0.5 * steeper, "base_ms": 10.0, "slo_ms": 40.0, "late_s": late_s, "guarded": guarded}
    tail = settle(StateraModel(period_s=0.25), seconds=180.0, **plant)[-240:]
    assert (max(tail) - min(tail)) / 2 <= max(1.0, 0.1 * sum(tail) / len(tail))


def test_it_comes_down_after_a_step_in_the_plant():
    model = StateraModel(period_s=0.25)
    before = settle(model, slope_ms=0.3, base_ms=10.0, slo_ms=40.0, seconds=40.0)
    after = settle(model, slope_ms=1.2, base_ms=10.0, slo_ms=40.0, seconds=100.0, from_s=40.0, n_run=before[-1])
    assert after[-1] <= 1.15 * 25 + 1


def test_it_does_not_wind_up_while_nothing_waits():
    model = StateraModel(period_s=0.25, n_run_start=16)
    windows: list[int] = []
    for step in range(400):
        now_s = 0.25 * step
        seen = instance(tpot_pressure=0.2, in_flight=2, n_run=windows[-1] if windows else 16)
        windows.append(
            last_n_run(model.observe(short_view(now_s, instances=[seen], utilization={"i0": 0.2}), now_s), windows[-1] if windows else 16)
        )
    assert max(windows) <= 17


def test_a_forced_knob_is_followed_and_left_without_a_jump():
    model = StateraModel(period_s=0.25, n_run_start=16)
    for step in range(40):
        now_s = 0.25 * step
        model.observe(
            short_view(now_s, instances=[instance(n_run=25, in_flight=25)], queued=50, forced=["knobs"], utilization={"i0": 0.2}), now_s
        )
    (action,) = model.observe(short_view(10.5, instances=[instance(n_run=25, in_flight=25)], queued=50, utilization={"i0": 0.2}), 10.5)
    assert 24 <= action.n_run <= 50


def test_a_hold_of_one_instance_leaves_the_others_regulated():
    model = StateraModel(period_s=0.25, n_run_start=64)
    last: dict[str, ControlAction] = {}
    for step in range(80):
        now_s = 0.25 * step
        seen = [instance(name=name, n_run=64, in_flight=64, tpot_pressure=2.0) for name in ("held", "free")]
        view = short_view(now_s, instances=seen, queued=50, forced=["knobs:held"], utilization={"held": 2.0, "free": 2.0})
        last |= {action.instance: action for action in model.observe(view, now_s)}
    assert last["held"].n_run == 64
    assert "operator" in last["held"].reason
    assert last["free"].n_run <= 32


def test_a_held_budget_is_followed_and_the_window_regulated():
    model, last = StateraModel(period_s=0.25, n_run_start=16), None
    for step in range(80):
        now_s = 0.25 * step
        n_run = last.n_run if last else 16
        seen = instance(n_run=n_run, in_flight=n_run, tpot_pressure=0.3, token_budget=5000, max_token_budget=8192)
        forced = ["budget:i0"] if step < 79 else []
        said = model.observe(short_view(now_s, instances=[seen], queued=50, forced=forced, utilization={"i0": 0.3}), now_s)
        last = said[-1] if said else last
    assert last is not None
    assert last.n_run > 32
    assert 5000 <= last.token_budget < 8192, "it goes on from what was held"


def test_a_held_window_leaves_the_token_budget_to_its_law():
    model, budget = StateraModel(period_s=0.25, n_run_start=16), 2048

    def serve(from_s: float, seconds: float, pressure: float, forced: list[str]) -> None:
        nonlocal budget
        for step in range(int(4 * seconds)):
            now_s = from_s + 0.25 * step
            seen = instance(n_run=16, in_flight=16, tpot_pressure=pressure, token_budget=budget, max_token_budget=2048)
            for action in model.observe(short_view(now_s, instances=[seen], forced=forced, utilization={"i0": pressure}), now_s):
                budget = action.token_budget
                assert not forced or (action.n_run == 16 and "operator" in action.reason)

    serve(0.0, 5.0, 2.0, [])
    low = budget
    assert low < 2048
    serve(5.0, 5.0, 0.2, ["knobs", "budget"])
    assert budget == low, "the operator holds both"
    serve(10.0, 30.0, 0.2, ["knobs"])
    assert budget == 2048


def test_it_gives_signs_of_life_between_long_periods():
    model, said_s = StateraModel(period_s=30.0, keep_alive_s=1.0), []
    for step in range(400):
        now_s = 0.1 * step
        said_s += [action.sent_s for action in model.observe(short_view(now_s), now_s)]
    assert max(after - before for before, after in pairwise(said_s)) < 1.2


def test_it_makes_the_guard_stricter_where_requests_begin_in_time_and_miss_their_pace():
    model, factors = StateraModel(period_s=0.25), []
    for step in range(240):
        now_s = 0.25 * step
        ended = [completion(1000 * step + part, now_s, tpot_ms=60.0 if part == 0 else 20.0) for part in range(4)]
        for action in model.observe(short_view(now_s, utilization={"i0": 0.8}, recent=ended), now_s):
            factors.append(action.guard)
    assert factors[0] == 1.0
    assert factors[-1] == 0.2
    assert factors == sorted(factors, reverse=True)
    (last,) = model.observe(short_view(70.0), 70.0)
    off = StateraModel(period_s=0.25)
    off.restored.add(last)
    said = [off.observe(short_view(at_s, instances=[instance(guard_enabled=False)]), at_s) for at_s in (71.0, 72.0)]
    assert said[-1][-1].guard == 1.0, "there is nothing to be strict with"
    again = StateraModel(period_s=0.25)
    again.restored.add(last)
    assert again.observe(short_view(71.0), 71.0)[0].guard == 0.2


def test_a_completion_that_comes_twice_counts_once():
    once, twice = StateraModel(), StateraModel()
    for number in range(200):
        message = completion(number, float(number), output_tokens=10 * number + 1)
        once.learn(message)
        twice.learn(message)
        twice.learn(message)
    view = short_view(300.0)
    assert [a.length_bounds for a in once.observe(view, 300.0)] == [a.length_bounds for a in twice.observe(view, 300.0)]


def test_a_full_window_does_not_open_while_targets_are_missed():
    """Utilization is within the band, and a fifth misses its pace all the same: what waits is no reason to let more in."""
    model, windows, n_run = StateraModel(period_s=0.25, n_run_start=64), [], 64
    for step in range(160):
        now_s = 0.25 * step
        seen = instance(n_run=n_run, in_flight=n_run, tpot_pressure=0.85)
        view = short_view(now_s, instances=[seen], queued=50, utilization={"i0": 0.85}, ended=50, tpot_violation_rate=0.3)
        n_run = last_n_run(model.observe(view, now_s), n_run)
        windows.append(n_run)
    assert max(windows) <= 64
    assert windows[-1] < 64


def test_a_full_window_within_the_band_opens_at_once_and_not_beyond_the_band():
    def serve(pressure, seconds):
        model, windows, n_run = StateraModel(period_s=0.25, n_run_start=64), [], 64
        for step in range(4 * seconds):
            now_s = 0.25 * step
            seen = instance(n_run=n_run, in_flight=n_run, tpot_pressure=pressure)
            view = short_view(now_s, instances=[seen], queued=50, utilization={"i0": pressure})
            n_run = last_n_run(model.observe(view, now_s), n_run)
            windows.append(n_run)
        return windows

    assert serve(0.8, 3)[-1] > 80
    assert max(serve(0.93, 10)) <= 64


@pytest.mark.parametrize("pressure", [0.7, 0.8])
def test_without_the_guard_a_full_window_is_opened_by_the_law_alone(pressure):
    """What opens beside it at a constant speed overshoots by the delay, and nobody but the guard would hold TPOT meanwhile."""

    def serve(guarded):
        model, n_run, windows = StateraModel(period_s=0.25, n_run_start=64), 64, []
        for step in range(40):
            now_s = 0.25 * step
            seen = instance(n_run=n_run, in_flight=n_run, tpot_pressure=pressure, guard_enabled=guarded)
            view = short_view(now_s, instances=[seen], queued=50, utilization={"i0": pressure})
            n_run = last_n_run(model.observe(view, now_s), n_run)
            windows.append(n_run)
        return windows

    alone, guarded = serve(guarded=False), serve(guarded=True)
    assert guarded[-1] > 1.1 * alone[-1]
    assert max(alone) <= 64 or pressure < 0.75


def test_a_full_window_opens_where_targets_are_kept_and_stays_where_tpot_is_missed():
    def serve(tpot_ms, missed_ttft=0.3, pressure=0.85):
        model, n_run = StateraModel(period_s=0.25, n_run_start=64), 64
        for step in range(16):
            now_s = 0.25 * step
            seen = instance(n_run=n_run, in_flight=n_run, tpot_pressure=pressure)
            ended = [completion(100 * step + part, now_s, tpot_ms=tpot_ms if part == 0 else 20.0) for part in range(4)]
            view = short_view(
                now_s, instances=[seen], queued=50, utilization={"i0": pressure}, recent=ended, ttft_violation_rate=missed_ttft
            )
            n_run = last_n_run(model.observe(view, now_s), n_run)
        return n_run

    assert serve(20.0) > 80
    assert serve(60.0) < 75, "a quarter of those that begin in time miss their TPOT target"
    assert serve(20.0, missed_ttft=0.0) > 80
    assert serve(20.0, pressure=0.95) < 70, "above the band"


def test_what_one_instance_misses_lowers_no_window_of_another():
    """Two models: the gateway's share of misses is half, and all of them are of one."""
    model, n_run, pressures = StateraModel(period_s=0.25, n_run_start=64), {"good": 64, "bad": 64}, {"good": 0.3, "bad": 2.0}
    for step in range(80):
        now_s = 0.25 * step
        seen = [instance(name=name, n_run=n_run[name], in_flight=n_run[name], tpot_pressure=u) for name, u in pressures.items()]
        ended = [
            completion(100 * step + part, now_s, instance="bad" if part % 2 else "good", tpot_ms=80.0 if part % 2 else 12.0)
            for part in range(8)
        ]
        view = short_view(now_s, instances=seen, queued=50, utilization=pressures, recent=ended, tpot_violation_rate=0.5)
        n_run |= {action.instance: action.n_run for action in model.observe(view, now_s)}
    assert n_run["good"] >= 64
    assert n_run["bad"] < 64


@pytest.mark.parametrize(("guarded", "least", "most"), [(True, 16, 16), (False, 1, 2)])
def test_under_the_guard_a_window_keeps_the_square_root_of_the_engines_own(guarded: bool, least: int, most: int):
    """Every request misses its TPOT target, at any window."""
    model, n_run = StateraModel(period_s=0.25), 256
    for step in range(800):
        now_s = 0.25 * step
        seen = instance(n_run=n_run, in_flight=n_run, tpot_pressure=2.0, guard_enabled=guarded)
        ended = [completion(step, now_s, tpot_ms=80.0)]
        view = short_view(now_s, instances=[seen], queued=50, utilization={"i0": 2.0}, recent=ended, tpot_violation_rate=1.0)
        n_run = last_n_run(model.observe(view, now_s), n_run)
    assert least <= n_run <= most


def test_the_misses_of_an_instance_are_those_of_its_recent_ends_that_no_client_caused():
    two = short_view(10.0, instances=[instance(), instance(name="i1")], tpot_violation_rate=0.7)
    misses = InstanceMisses()
    for number in range(9):
        misses.learn(completion(number, 10.0, tpot_ms=80.0 if number < 3 else 20.0))
        misses.learn(completion(number, 10.0, tpot_ms=80.0, outcome=OutcomeKind.CANCELLED))
        misses.learn(completion(number, 10.0, outcome=OutcomeKind.REJECTED, status=413))
    assert misses.share(two, 10.0) == 0.0, "too few"
    misses.learn(completion(9, 10.0, tpot_ms=-1.0, outcome=OutcomeKind.FAILED, status=502))
    assert misses.share(two, 10.0) == 0.3
    assert misses.share(short_view(10.0, tpot_violation_rate=0.7), 10.0) == 0.7, "of the only instance the gateway's share is its own"
    for number in range(2_000):
        misses.learn(completion(number, 12.0))
    assert misses.share(two, 12.0) == 0.0
    assert misses.share(two, 60.0) == 0.0


def test_it_resumes_its_own_window():
    first = StateraModel(period_s=0.25)
    windows = settle(first, slope_ms=0.5, base_ms=10.0, slo_ms=40.0, seconds=30.0)
    seen = instance(n_run=windows[-1], in_flight=windows[-1])
    last = None
    for step in range(20):
        now_s = 31.0 + 0.25 * step
        said = first.observe(short_view(now_s, instances=[seen], queued=5), now_s)
        last = said[-1] if said else last
    assert last is not None
    second = StateraModel(period_s=0.25)
    second.restored.add(last)
    (action, *_) = second.observe(short_view(40.0, instances=[seen], queued=5), 40.0)
    assert abs(action.n_run - last.n_run) <= 0.3 * last.n_run
