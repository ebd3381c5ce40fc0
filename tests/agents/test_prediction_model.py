"""Speed, residuals, features and the model that binds them."""

import math
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_kit import request_features
from prediction_kit import Constant, completion, features, healthy, snapshot, view

from hmas.agents.prediction import model as model_module
from hmas.agents.prediction.calibration import Residual
from hmas.agents.prediction.features import FEATURES, Fleet, InstanceState, categories, expected_in_flight
from hmas.agents.prediction.model import FORGET_S, NAMED, REMEMBERED_PAIRS, STALE_S, PredictionModel
from hmas.agents.prediction.speed import UNKNOWN_SPEED, SpeedFit
from hmas.controller.core.messages import InstanceView
from hmas.controller.core.statistics.step_fit import Step
from hmas.controller.core.types import OutcomeKind
from hmas.engines.base import EngineSnapshot


def test_the_fit_finds_an_engines_figures():
    rng = np.random.default_rng(1)
    fit = SpeedFit()
    for _ in range(300):
        load = rng.uniform(1, 40)
        prompt = int(rng.integers(20, 3000))
        step_ms = 12.0 + 0.4 * load
        fit.learn(
            completion(
                tpot_ms=step_ms * rng.lognormal(0, 0.05), ttft_ms=1.5 * step_ms + 0.08 * prompt, prompt_tokens=prompt, output_tokens=80
            ),
            load,
        )
    assert fit.speed.base_ms == pytest.approx(12.0, rel=0.1)
    assert fit.speed.seq_ms == pytest.approx(0.4, rel=0.15)
    assert fit.speed.prompt_ms == pytest.approx(0.08, rel=0.1)
    assert fit.speed.samples == 300


def test_one_load_alone_still_gives_the_right_step_there():
    fit = SpeedFit()
    for _ in range(50):
        fit.learn(completion(tpot_ms=30.0), 8.0)
    assert fit.speed.decode_ms(8.0) == pytest.approx(30.0, rel=0.02)
    assert fit.speed.seq_ms > 0


def test_an_answer_that_was_read_in_one_lot_does_not_outweigh_all_others():
    fit = SpeedFit()
    for _ in range(100):
        fit.learn(completion(tpot_ms=20.0), 1.0)
    for read_ms in (12.0, 1.0):
        fit.learn(completion(tpot_ms=read_ms / 20, output_tokens=21), 1.0)
    assert fit.speed.decode_ms(1.0) == pytest.approx(20.0, rel=0.1)
    assert fit.speed.samples == 101, "no engine takes 50 us a step"


def test_an_engine_that_changes_is_followed():
    fit = SpeedFit()
    for tpot_ms in [10.0] * 500 + [40.0] * 1500:
        fit.learn(completion(tpot_ms=tpot_ms), 4.0)
    assert fit.speed.decode_ms(4.0) == pytest.approx(40.0, rel=0.1)


@given(st.lists(st.tuples(st.floats(0.01, 1e5), st.floats(-1, 1e6), st.integers(0, 10**6), st.floats(1, 500)), max_size=40))
def test_figures_stay_positive_and_finite(seen):
    fit = SpeedFit()
    for tpot_ms, ttft_ms, prompt_tokens, load in seen:
        fit.learn(completion(tpot_ms=tpot_ms, ttft_ms=ttft_ms, prompt_tokens=prompt_tokens), load)
    speed = fit.speed
    assert 0 < speed.base_ms < 1e7
    assert 0 <= speed.seq_ms < 1e7
    assert 0 < speed.prompt_ms < 1e7


def test_residuals_follow_a_lasting_error_and_shrug_off_single_ones():
    residual = Residual()
    residual.learn(1000.0, 1.0)
    assert residual.mean < math.log(1.02)
    for _ in range(1000):
        residual.learn(20.0, 10.0)
    assert math.exp(residual.mean) == pytest.approx(2.0, rel=0.05)


@given(st.lists(st.tuples(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True)), max_size=200))
def test_the_factor_is_bounded_whatever_comes(errors):
    residual = Residual()
    for actual, predicted in errors * 20:
        residual.learn(actual, predicted)
    assert 0.25 - 1e-9 <= math.exp(residual.mean) <= 4.0 + 1e-9


def state(**changes) -> InstanceState:
    fields: dict[str, Any] = {"view": view(), "speed": Step(20.0, 0.5, 0.1), "prefill_load": 0.1, "trend": 0.0}
    return InstanceState(**(fields | changes))


def test_the_formula_grows_with_prompt_load_and_chunks():
    waiting = EngineSnapshot(engine="a", taken_s=1.0, healthy=True, waiting=5)
    fleet = Fleet([state(), state(view=view(in_flight=14)), state(view=view(engine=waiting))])
    ttft_ms, tpot_ms = fleet.analytic(np.array([100.0, 1000.0, 5000.0]))
    short, long, longest = ttft_ms[:, 0]
    assert long == pytest.approx(short + 900 * 0.1)
    assert longest > long + 4000 * 0.1
    assert tpot_ms[0, 1] == pytest.approx(20.0 + 0.5 * 15)
    assert ttft_ms[0, 1] > short
    assert ttft_ms[0, 2] > short


def test_a_queue_fills_the_window_before_the_request_starts():
    assert expected_in_flight(state()) == 4
    assert expected_in_flight(state(view=view(queued_for=5.0))) == 9
    assert expected_in_flight(state(view=view(queued_for=500.0))) == 15


def rows_of(states, prompt_tokens, output_tokens):
    fleet = Fleet(states)
    prompts = np.array(prompt_tokens, dtype=float)
    return fleet.rows(prompts, np.array(output_tokens, dtype=float), fleet.analytic(prompts)[0])


def test_the_row_does_not_depend_on_the_engines_absolute_speed():
    slow, fast = rows_of([state(), state(speed=Step(2.0, 0.05, 0.01))], [300], [50.0])
    assert slow.tolist() == pytest.approx(fast.tolist(), rel=1e-5, nan_ok=True)
    assert len(slow) == len(FEATURES)


def test_missing_signals_are_missing_not_zero():
    found = dict(zip(FEATURES, rows_of([state()], [10], [1.0])[0], strict=True))
    assert all(math.isnan(found[name]) for name in ("engine_running", "engine_waiting", "kv_usage"))


def test_a_batch_of_instances_is_what_each_gives_alone():
    told = EngineSnapshot(engine="b", taken_s=1.0, healthy=True, running=7, waiting=3, kv_usage=0.4, max_num_batched_tokens=512)
    states = [state(), state(view=view("b", in_flight=9, queued_for=4.0, engine=told), hardware="2xa100"), state(view=view("c", n_run=3))]
    prompts, outputs = [10.0, 700.0, 9000.0], [5.0, 100.0, 900.0]
    together = rows_of(states, prompts, outputs).reshape(3, 3, -1)
    for request in range(3):
        for number, one in enumerate(states):
            alone = rows_of([one], [prompts[request]], [outputs[request]])[0]
            assert np.array_equal(together[request, number], alone, equal_nan=True)
    names = categories([features("r"), features("s")], Fleet(states)).reshape(2, 3, -1)
    assert [names[0, number, 0] for number in range(3)] == [b"unknown", b"2xa100", b"unknown"]
    assert names[1, 2, 1] == b"m"


def test_without_a_fresh_snapshot_nothing_is_said():
    model = PredictionModel(None)
    assert model.predict([features()], 100.0) == []
    model.observe(snapshot(view()))
    assert model.predict([], 100.0) == []
    assert len(model.predict([features()], 100.0 + STALE_S)) == 1
    assert model.predict([features()], 100.1 + STALE_S) == []
    model.observe(snapshot(at_s=101.0))
    assert model.predict([features()], 101.0) == []


def test_costs_come_per_candidate_in_one_call():
    regressor = Constant(math.log(2.0), math.log(0.5))
    model = PredictionModel(regressor)
    model.observe(snapshot(view("a"), view("b", in_flight=12), view("c", draining=True), view("d", engine=healthy("d", is_healthy=False))))
    costs = model.predict([features("x"), features("y", prompt_tokens=4000)], 100.0)
    assert [cost.request_id for cost in costs] == ["x", "y"]
    assert regressor.calls == [(4, len(FEATURES))]
    assert all(set(cost.ttft_ms) == set(cost.tpot_ms) == {"a", "b"} for cost in costs)
    assert costs[0].tpot_ms["b"] > costs[0].tpot_ms["a"]
    assert costs[1].ttft_ms["a"] > costs[0].ttft_ms["a"]
    plain = PredictionModel(None)
    plain.observe(snapshot(view("a")))
    (uncorrected,) = plain.predict([features("x")], 100.0)
    assert costs[0].ttft_ms["a"] == pytest.approx(2.0 * uncorrected.ttft_ms["a"])
    assert costs[0].tpot_ms["a"] == pytest.approx(0.5 * uncorrected.tpot_ms["a"])


def test_when_all_drain_or_ail_all_are_candidates():
    model = PredictionModel(None)
    model.observe(snapshot(view("a", draining=True), view("b", engine=healthy("b", is_healthy=False))))
    assert set(model.predict([features()], 100.0)[0].ttft_ms) == {"a", "b"}


def test_only_instances_that_serve_the_model_are_candidates():
    def named(*views: InstanceView) -> dict[str, set[str]]:
        model = PredictionModel(Constant(0.0, 0.0))
        model.observe(snapshot(*views))
        costs = model.predict([request_features(name, model=name) for name in ("small", "large", "tiny", "none")], 100.0)
        return {cost.request_id: set(cost.ttft_ms) for cost in costs}

    small, large = view("a", models=["small", "tiny"]), view("b", models=["large"])
    assert named(small, large) == {"small": {"a"}, "tiny": {"a"}, "large": {"b"}}
    draining = msgspec.structs.replace(small, draining=True)
    assert named(draining, large) == {"small": {"a"}, "tiny": {"a"}, "large": {"b"}}
    assert named(draining, large, view("any")) == {"small": {"any"}, "tiny": {"any"}, "large": {"b", "any"}, "none": {"any"}}


def test_models_of_the_same_instances_are_one_call():
    regressor = Constant(0.0, 0.0)
    model = PredictionModel(regressor)
    model.observe(snapshot(view("a", models=["one", "two"]), view("b", models=["three"])))
    model.predict([request_features(str(number), model=name) for number, name in enumerate(["one", "three", "two"] * 3)], 100.0)
    assert [rows for rows, _ in regressor.calls] == [6, 3]


@pytest.mark.parametrize("wild", [50.0, -50.0])
def test_a_wild_regressor_is_held_within_bounds(wild):
    model = PredictionModel(Constant(wild, wild))
    model.observe(snapshot(view("a")))
    plain = PredictionModel(None)
    plain.observe(snapshot(view("a")))
    said = model.predict([features()], 100.0)[0].ttft_ms["a"]
    assert said == pytest.approx(plain.predict([features()], 100.0)[0].ttft_ms["a"] * math.exp(math.copysign(2.0, wild)), rel=1e-6)


def test_live_errors_correct_one_instance_and_not_the_other():
    model = PredictionModel(Constant(math.log(0.5), math.log(0.5)))
    model.observe(snapshot(view("a"), view("b")))
    first = model.predict([features("probe")], 100.0)[0]
    for number in range(400):
        for instance in ("a", "b"):
            model.predict([features(f"{instance}{number}")], 100.0)
            step_ms = 27.5
            tpot_ms = step_ms if instance == "a" else 0.5 * step_ms
            model.learn(completion(f"{instance}{number}", instance=instance, tpot_ms=tpot_ms))
    factors = {name: math.exp(model.tracks()[name, "tpot"].model.mean) for name in ("a", "b")}
    assert factors["a"] > 1.5
    assert first.tpot_ms["a"] == pytest.approx(first.tpot_ms["b"])
    assert factors["a"] > 1.3 * factors["b"]


def test_a_completion_counts_once_and_only_when_completed():
    model = PredictionModel(None)
    model.observe(snapshot(view("a")))
    model.learn(completion("r", tpot_ms=500.0, outcome=OutcomeKind.FAILED))
    model.learn(completion("r", tpot_ms=500.0, instance="elsewhere"))
    assert model.instances["a"].fit.speed == UNKNOWN_SPEED
    model.learn(completion("r"))
    once = model.instances["a"].fit.speed
    model.learn(completion("r"))
    assert model.instances["a"].fit.speed == once


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(model_module, "REMEMBERED", 10)
    monkeypatch.setattr(model_module, "INSTANCES", 3)
    model = PredictionModel(None)
    for number in range(50):
        model.observe(snapshot(view(f"i{number}"), at_s=100.0 + number))
        model.predict([features(f"r{number}")], 100.0 + number)
        model.learn(completion(f"c{number}", instance=f"i{number}"))
    assert len(model.instances) == 3
    assert len(model.open_answers) <= 10
    assert len(model.learnt) <= 10


def test_an_instance_that_has_left_is_kept_for_minutes_and_then_forgotten():
    model = PredictionModel(None)
    model.observe(snapshot(view("a"), view("b"), at_s=100.0))
    model.learn(completion("r", instance="b"))
    model.observe(snapshot(view("a"), at_s=100.0 + FORGET_S))
    assert {name for name, _ in model.tracks()} == {"a"}
    assert model.instances["b"].fit.speed != UNKNOWN_SPEED
    model.observe(snapshot(view("a"), at_s=101.0 + FORGET_S))
    assert set(model.instances) == {"a"}


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [({}, True), ({"profile": "other"}, False), ({"models": ["n"]}, False), ({"models": ["m", "n"]}, True), ({"models": []}, True)],
)
def test_an_instance_that_is_back_with_another_profile_or_other_models_starts_anew(change, is_kept):
    known = {"other": (Step(5.0, 0.1, 0.01), "1xh100")}
    model = PredictionModel(None, prior_named=lambda profile: known.get(profile, (None, "unknown")))
    model.observe(snapshot(view(models=["m"])))
    model.predict([features()], 100.0)
    model.learn(completion())
    learnt = model.instances["a"].fit.speed
    assert learnt != UNKNOWN_SPEED
    model.observe(snapshot(view(models=[]), at_s=101.0))
    model.observe(snapshot(at_s=102.0))
    model.observe(snapshot(view(**({"models": ["m"]} | change)), at_s=103.0))
    back = model.instances["a"]
    expected, hardware = known.get(change.get("profile"), (UNKNOWN_SPEED, "unknown"))
    assert back.fit.speed == (learnt if is_kept else expected)
    assert back.hardware == hardware
    assert back.tracks["ttft"].watch.count == is_kept


def test_an_outage_is_no_burst_of_prompts():
    model = PredictionModel(None)

    def seen(at_s: float, total: int, *, is_healthy: bool = True) -> float:
        one = view(engine=EngineSnapshot(engine="a", taken_s=at_s, healthy=is_healthy, prompt_tokens_total=total))
        model.observe(snapshot(one, at_s=at_s))
        return model.instances["a"].state(one).prefill_load

    seen(100.0, 1_000_000)
    seen(101.0, 0, is_healthy=False)
    assert math.isnan(seen(106.0, 1_000_000)), "all that the engine has computed since it started"
    assert seen(107.0, 1_000_500) == pytest.approx(500 * UNKNOWN_SPEED.prompt_ms / 1000.0)


def test_a_thousand_instances_are_one_bounded_call():
    regressor = Constant(0.0, 0.0)
    model = PredictionModel(regressor)
    model.observe(snapshot(*(view(f"i{number}", in_flight=number % 16) for number in range(1000))))
    costs = model.predict([features(f"r{number}") for number in range(40)], 100.0)
    assert len(costs) == 40
    assert sum(rows for rows, _ in regressor.calls) == 40_000
    assert max(rows for rows, _ in regressor.calls) <= model_module.ROWS_AT_ONCE
    assert all(len(cost.ttft_ms) == len(cost.tpot_ms) == NAMED for cost in costs)
    idle = {f"i{number}" for number in range(1000) if number % 16 == 0}
    assert len(idle & set(costs[0].ttft_ms)) == min(NAMED, len(idle))


def test_what_awaits_its_outcome_is_bounded_in_pairs(monkeypatch):
    monkeypatch.setattr(model_module, "REMEMBERED_PAIRS", 100)
    model = PredictionModel(None)
    model.observe(snapshot(*(view(f"i{number}") for number in range(30))))
    for number in range(50):
        model.predict([features(f"r{number}"), features("again")], 100.0)
        assert sum(len(answer.named) for answer in model.open_answers.values()) == model.open_pairs <= 100
    model.learn(completion("again", instance="i3"))
    assert sum(len(answer.named) for answer in model.open_answers.values()) == model.open_pairs
    assert REMEMBERED_PAIRS > 100


def test_a_profile_is_where_an_instance_starts_and_completions_outweigh_it():
    prior = Step(8.0, 0.1, 0.02)
    fit = SpeedFit(prior)
    assert fit.speed == prior
    for _ in range(5):
        fit.learn(completion(tpot_ms=9.0, ttft_ms=14.0), 8.0)
    assert fit.speed.decode_ms(8.0) == pytest.approx(9.0, rel=0.06)
    assert fit.speed.decode_ms(1.0) == pytest.approx(prior.decode_ms(1.0), rel=0.2)
    for _ in range(1000):
        fit.learn(completion(tpot_ms=30.0), 8.0)
    assert fit.speed.decode_ms(8.0) == pytest.approx(30.0, rel=0.05)


def test_instances_with_a_prior_are_told_apart_before_the_first_completion():
    known = {"some-profile": (Step(5.0, 0.1, 0.01), "1xh100")}
    model = PredictionModel(None, prior_named=lambda profile: known.get(profile, (None, "unknown")))
    model.observe(snapshot(msgspec.structs.replace(view("fast"), profile="some-profile"), view("unknown")))
    (cost,) = model.predict([features()], 100.0)
    assert cost.tpot_ms["fast"] < 0.5 * cost.tpot_ms["unknown"]


def test_more_load_never_costs_less_by_the_formula():
    model = PredictionModel(None)
    said = []
    for in_flight in range(16):
        model.observe(snapshot(view("a", in_flight=in_flight), at_s=100.0 + in_flight))
        said.append(model.predict([features()], 100.0 + in_flight)[0])
    assert all(before.tpot_ms["a"] <= after.tpot_ms["a"] for before, after in pairwise(said))
