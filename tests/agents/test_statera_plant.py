"""Statera's parts: plant, target, loops, and the agent's pace and restarts."""

import math

import numpy as np
import pytest
from control_kit import completion, instance, short_view
from hypothesis import given
from hypothesis import strategies as st

from hmas.agents.statera.budgets import BandBudget, BudgetInputs
from hmas.agents.statera.conformal import LengthCalibrator
from hmas.agents.statera.gains import Gains
from hmas.agents.statera.guard_factor import GuardFactorController
from hmas.agents.statera.loops import Band, Load, WindowLoop
from hmas.agents.statera.model import StateraModel
from hmas.agents.statera.target import Target, best_window
from hmas.agents.statera.tpot_model import TpotModel
from hmas.controller.core.types import OutcomeKind
from hmas.engines.base import EngineSnapshot


def taught(*, base_ms: float, slope_ms: float, n: float, slos_ms, count: int = 300, scatter: float = 0.1, seed: int = 1) -> TpotModel:
    """A plant that has been watched at about n in flight, with a lull now and then."""
    rng, plant = np.random.default_rng(seed), TpotModel()
    for number in range(count):
        here = 1.0 if number % 50 == 0 else n * rng.uniform(0.8, 1.0)
        now_s = 10.0 * number
        plant.trace.hold(now_s, round(here))
        tpot_ms = (base_ms + slope_ms * round(here)) * math.exp(scatter * rng.standard_normal())
        plant.learn(
            completion(
                number, now_s + 9.0, arrival_s=now_s + 0.1, queue_ms=0.0, ttft_ms=200.0, service_ttft_ms=200.0,
                tpot_ms=tpot_ms, total_ms=200.0 + 99 * tpot_ms, tpot_slo_ms=float(rng.choice(slos_ms)),
            )
        )  # fmt: skip
    return plant


@pytest.mark.parametrize("n", [6, 12, 24, 48])
def test_the_law_is_found_from_wherever_one_looks(n):
    plant = taught(base_ms=15.0, slope_ms=1.2, n=n, slos_ms=[60.0])
    for other in (n / 1.5, n, n * 1.5):
        assert plant.tpot.predict(other) == pytest.approx(15.0 + 1.2 * other, rel=0.15)


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_say_nothing_of_the_pace(*, stream: bool):
    plant = TpotModel()
    plant.trace.hold(0.0, 4)
    before = float(plant.tpot.predict(4.0))
    whole = {"ttft_ms": -1.0, "service_ttft_ms": -1.0, "tpot_ms": -1.0}
    for number in range(20):
        more = {"tpot_ms": 200.0} if stream else whole
        plant.learn(completion(number, 10.0 * number + 9.0, output_tokens=400, sequences=4, total_ms=2100.0, **more))
    assert float(plant.tpot.predict(4.0)) == before


def test_the_rate_is_that_of_littles_law():
    plant = taught(base_ms=15.0, slope_ms=1.2, n=20, slos_ms=[60.0])
    service_s = (200.0 + 99 * (15.0 + 1.2 * 18)) / 1000.0
    assert float(plant.rps(np.array([18.0]))[0]) == pytest.approx(18 / service_s, rel=0.1)


def test_one_target_for_all_is_held():
    plant = taught(base_ms=15.0, slope_ms=1.2, n=20, slos_ms=[45.0], scatter=0.02)
    target = best_window(plant, now_n=20, low=1, high=256)
    assert target is not None
    assert 20 <= target.n_run <= 25
    assert target.share > 0.85


def test_a_few_strict_targets_are_given_up_where_that_pays():
    """With n = 8 everybody is in time; with n = 40 the strict tenth is lost, and the others are served more than twice as fast."""
    plant = taught(base_ms=15.0, slope_ms=0.5, n=40, slos_ms=[19.5] + [80.0] * 9, scatter=0.02)
    target = best_window(plant, now_n=40, low=1, high=256)
    assert target is not None
    assert target.n_run > 40
    assert target.share == pytest.approx(0.9, abs=0.06)
    many_strict = taught(base_ms=15.0, slope_ms=0.5, n=40, slos_ms=[19.5] * 9 + [80.0], scatter=0.02)
    held = best_window(many_strict, now_n=40, low=1, high=256)
    assert held is not None
    assert held.n_run <= 10


def test_nothing_is_concluded_from_nothing():
    assert best_window(TpotModel(), now_n=8, low=1, high=64) is None
    assert best_window(taught(base_ms=15, slope_ms=1, n=8, slos_ms=[40.0], count=5), now_n=8, low=1, high=64) is None
    hopeless = taught(base_ms=15.0, slope_ms=1.0, n=8, slos_ms=[1.0])
    assert best_window(hopeless, now_n=8, low=1, high=64) is None


def test_what_did_not_complete_or_was_not_watched_teaches_nothing():
    plant = TpotModel()
    plant.trace.hold(100.0, 4)
    for number in range(20):
        plant.learn(completion(number, 200.0, arrival_s=150.0, outcome=OutcomeKind.CANCELLED))
        plant.learn(completion(number, 200.0, arrival_s=50.0))
        plant.learn(completion(number, 200.0, arrival_s=150.0, output_tokens=1))
        plant.learn(completion(number, 200.0, arrival_s=150.0, tpot_ms=-1.0))
    assert not plant.ready


@given(u=st.floats(0, 100), low=st.floats(0.1, 0.9), width=st.floats(0, 1))
def test_the_band_error_is_the_distance_to_the_band(u, low, width):
    band = Band(low, low + width)
    error = band.error(u)
    assert (error == 0.0) == (low <= u <= low + width)
    assert low - 1e-9 <= u - error <= low + width + 1e-9
    assert -1.0 <= band.log_error(u) <= 1.0
    assert band.log_error(u) * error >= 0.0
    raised = band.raised(u)
    assert raised.low == band.low
    assert band.high <= raised.high <= 2.0 * band.high


def test_a_wrong_model_does_not_hold_the_window_down_for_ever():
    """The target says 2, and at 2 the instance is nearly idle while requests wait: the band wins."""
    loop = WindowLoop(1, 8.0, cold_low=4.0)
    for _ in range(240):
        n_run = loop.n_run(256)
        loop.sample(Band(0.75, 0.92).log_error(min(4.0, n_run / 64)))
        loop.update(Load(in_flight=n_run, waits=True, ceiling=256), Target(n_run=2, rps=1.0, share=1.0, pressure=0.5), 0.5)
    assert loop.n_run(256) >= 20


@pytest.mark.parametrize(("start", "aim", "after"), [(8.0, 200, 11), (200.0, 8, 100)])
def test_a_window_with_a_target_moves_no_faster_than_one_without(start: float, aim: int, after: int):
    loop = WindowLoop(1, start, cold_low=1.0, gains=Gains(lead_s=0.1))
    loop.update(Load(in_flight=8, waits=False, ceiling=256), Target(n_run=aim, rps=1.0, share=1.0, pressure=0.5), 0.5)
    assert loop.n_run(256) == after


@given(
    steps=st.lists(
        st.tuples(
            st.floats(-1, 1),
            st.integers(0, 300),
            st.booleans(),
            st.integers(1, 300),
            st.one_of(st.none(), st.integers(1, 300)),
            st.floats(0, 5),
        ),
        max_size=80,
    )
)
def test_the_loop_never_accumulates_beyond_its_bounds(steps):
    loop = WindowLoop(2, 16.0, cold_low=8.0)
    for error, in_flight, waits, ceiling, wanted, dt in steps:
        loop.sample(error)
        target = None if wanted is None else Target(n_run=wanted, rps=1.0, share=1.0, pressure=0.5)
        loop.update(Load(in_flight=in_flight, waits=waits, ceiling=ceiling), target, dt)
        assert min(2, ceiling) - 1e-6 <= loop.base * math.exp(loop.trim) <= ceiling + 1e-6
        assert min(2, ceiling) <= loop.n_run(ceiling) <= ceiling


def test_the_window_leaves_its_ceiling_as_soon_as_the_error_turns():
    loop = WindowLoop(1, 16.0, cold_low=8.0)
    for _ in range(200):
        loop.sample(-1.0)
        loop.update(Load(in_flight=loop.n_run(64), waits=True, ceiling=64), None, 0.5)
    assert loop.n_run(64) == 64
    loop.errors.clear()
    loop.sample(0.5)
    loop.update(Load(in_flight=64, waits=True, ceiling=64), None, 0.5)
    assert loop.n_run(64) < 64


@given(errors=st.lists(st.floats(-2, 4), min_size=1, max_size=40), n_run=st.integers(1, 4096), ceiling=st.integers(1, 8192))
def test_the_budget_serves_every_decode_and_moves_gently(errors, n_run, ceiling):
    loop, last = BandBudget(), ceiling
    floor = min(ceiling, n_run + max(1, ceiling // 2))
    for error in errors:
        budget = loop.update(BudgetInputs(error, n_run, ceiling))
        assert floor <= budget <= ceiling
        assert budget >= min(floor, last // 2)
        last = budget
    for _ in range(40):
        loop.update(BudgetInputs(0.0, n_run, ceiling))
    assert loop.budget == ceiling


def test_small_buckets_borrow_and_broken_off_answers_count_only_past_their_bound():
    calibrator = LengthCalibrator(0.1)
    assert calibrator.bounds() == []
    for number in range(200):
        calibrator.learn(completion(number, 0.0, prompt_tokens=300, output_tokens=100, predicted_output_tokens=90.0))
    bounds = calibrator.bounds()
    assert [bound.prompt_tokens_below for bound in bounds] == [128, 512, 2048, 8192, 0]
    assert {bound.add_tokens for bound in bounds} == {10.0}
    for number in range(100):
        calibrator.learn(completion(number, 0.0, prompt_tokens=300, output_tokens=5, outcome=OutcomeKind.CANCELLED))
    assert calibrator.add_tokens(300) == 10.0
    for number in range(100):
        calibrator.learn(completion(number, 0.0, prompt_tokens=300, output_tokens=500, outcome=OutcomeKind.TIMED_OUT))
    assert calibrator.add_tokens(300) == 410.0


def test_an_instance_that_is_down_keeps_its_window_and_teaches_nothing():
    model = StateraModel(n_run_start=12, period_s=0.25)
    down = EngineSnapshot(engine="i0", taken_s=0.0, healthy=False, detail="refused")
    said = []
    for step in range(80):
        now_s = 0.25 * step
        seen = instance(n_run=12, in_flight=0 if step > 10 else 12, tpot_pressure=9.0 if step <= 10 else 0.0, engine=down)
        said += model.observe(short_view(now_s, instances=[seen], queued=50, utilization={"i0": 9.0}), now_s)
    assert {action.n_run for action in said} == {12}


def test_what_an_engine_has_shown_is_forgotten_when_it_serves_other_models():
    model = StateraModel()
    model.observe(short_view(3000.0, instances=[instance(models=["m"])]), 3000.0)
    station = model.instances["i0"]
    plant = station.plant = taught(base_ms=15.0, slope_ms=1.2, n=12, slos_ms=[60.0])
    station.loop.track(5)
    station.guard_factors = GuardFactorController(0.2)
    for number, models in enumerate((["m"], [], ["l", "m"], ["l"], [])):
        model.observe(short_view(3001.0 + number, instances=[instance(models=models)]), 3001.0 + number)
        assert plant.ready
    model.observe(short_view(3010.0, instances=[instance(models=["n"])]), 3010.0)
    assert not plant.ready
    assert (station.guard_factors.factor, station.loop.n_run(256)) == (1.0, 256)
    assert (plant.service_s, plant.tpot.n_max, plant.tpot.predict(12.0)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("step", "opens"), [(1, False), (32, True)])
def test_a_window_that_has_no_place_for_a_usual_request_is_full(step: int, opens: bool):
    loop = WindowLoop(1, 63.0, cold_low=1.0)
    for _ in range(4):
        loop.update(Load(in_flight=32, waits=True, ceiling=64, step=step, room=1.0, missed=False), None, 0.5)
    assert (loop.n_run(64) == 64) is opens


def test_it_says_what_changes_at_once_and_the_rest_now_and_then():
    model = StateraModel(n_run_start=16, period_s=0.5)
    said = []
    for step in range(200):
        now_s = 0.1 * step
        said += model.observe(short_view(now_s, instances=[instance(tpot_pressure=0.8, n_run=16, in_flight=8)]), now_s)
    assert {action.n_run for action in said} == {16}
    assert 9 <= len(said) <= 12


def test_an_action_that_was_lost_is_said_again():
    model = StateraModel(n_run_start=16, period_s=0.5)
    said = []
    for step in range(40):
        now_s = 0.1 * step
        said += model.observe(short_view(now_s, instances=[instance(tpot_pressure=0.8, n_run=256, in_flight=8)]), now_s)
    assert len(said) >= 4


def test_knobs_are_only_turned_where_there_are_any():
    model = StateraModel(period_s=0.25)
    said = []
    for step in range(40):
        now_s = 0.25 * step
        seen = [instance(tpot_pressure=2.0, in_flight=16), instance(name="i1", tpot_pressure=2.0, in_flight=16, max_token_budget=2048)]
        said += model.observe(short_view(now_s, instances=seen, utilization={"i0": 2.0, "i1": 2.0}), now_s)
    assert {action.token_budget for action in said if action.instance == "i0"} == {0}
    assert min(action.token_budget for action in said if action.instance == "i1" and action.token_budget) < 2048
