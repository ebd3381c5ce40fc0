"""A request's times without load: beside those under load, of the same model, and no function of the load."""

import numpy as np
import pytest
from prediction_kit import completion, features, healthy, snapshot, view
from typing_kit import known

from hmas.agents.prediction.features import FEATURES, Fleet, InstanceState
from hmas.agents.prediction.model import NAMED, PredictionModel
from hmas.agents.prediction.regressor import load_regressor
from hmas.controller.core.messages import InstanceView, RequestCost
from hmas.controller.core.statistics.step_fit import Step
from hmas.engines.base import EngineSnapshot

NAMES = ("a", "b")
PROFILES = {"fast": (Step(8.0, 0.1, 0.02), "1xh100_sxm"), "slow": (Step(25.0, 0.4, 0.12), "1xl4")}


@pytest.fixture(scope="module")
def shipped():
    return load_regressor()


def loaded(name: str, load: int, profile: str) -> InstanceView:
    engine = EngineSnapshot(
        engine=name, taken_s=100.0, healthy=True, running=load, waiting=load // 4, kv_usage=min(1.0, 0.02 * load),
        max_num_batched_tokens=2048, prompt_tokens_total=3000 * load,
    )  # fmt: skip
    return view(name, in_flight=load, n_run=max(8, load), engine=engine, capacity_n_run=64, profile=profile)


def costs_under(model: PredictionModel, load: int, at_s: float) -> RequestCost:
    model.observe(snapshot(loaded("a", load, "fast"), loaded("b", load // 2, "slow"), at_s=at_s, queued=load, alone=True))
    (cost,) = model.predict([features("r", 700, 250.0)], at_s)
    return cost


def test_they_stay_as_they_are_when_the_load_changes(shipped):
    model = PredictionModel(shipped, prior_named=lambda profile: PROFILES[profile])
    found = [costs_under(model, load, 100.0 + step) for step, load in enumerate((0, 6, 24, 48, 2))]
    for cost in found:
        assert set(cost.alone_ttft_ms) == set(cost.alone_tpot_ms) == set(cost.ttft_ms) == set(NAMES)
        assert (cost.alone_ttft_ms, cost.alone_tpot_ms) == (found[0].alone_ttft_ms, found[0].alone_tpot_ms)
    for name in NAMES:
        under = [(cost.ttft_ms[name], cost.tpot_ms[name]) for cost in found]
        assert len(set(under)) == len(under), "those under load change with it"
        assert under[3][0] > 1.2 * found[0].alone_ttft_ms[name]
        assert under[3][1] > 1.2 * found[0].alone_tpot_ms[name]
    assert found[0].alone_tpot_ms["b"] > 2.0 * found[0].alone_tpot_ms["a"]
    # About a step, and the prompt's own time.
    assert found[0].alone_tpot_ms["a"] == pytest.approx(8.1, rel=0.15)
    assert found[0].alone_ttft_ms["a"] == pytest.approx(1.5 * 8.0 + 700 * 0.02, rel=0.4)


def test_they_are_computed_only_while_a_router_goes_by_them(shipped):
    def answer(alone: bool) -> RequestCost:
        model = PredictionModel(shipped, prior_named=lambda profile: PROFILES[profile])
        for wanted in (not alone, alone):
            model.observe(snapshot(loaded("a", 6, "fast"), loaded("b", 3, "slow"), queued=6, alone=wanted))
            assert len(known(model.fleet("m"))) == (4 if wanted else 2)
        return model.predict([features("r", 700, 250.0)], 100.0)[0]

    without, with_them = answer(alone=False), answer(alone=True)
    assert without.alone_ttft_ms == without.alone_tpot_ms == {}
    assert set(with_them.alone_ttft_ms) == set(with_them.alone_tpot_ms) == set(NAMES)
    assert with_them.ttft_ms == pytest.approx(without.ttft_ms, rel=1e-5)


def test_they_follow_the_request(shipped):
    model = PredictionModel(shipped, prior_named=lambda profile: PROFILES[profile])
    model.observe(snapshot(loaded("a", 9, "fast"), loaded("b", 3, "slow"), alone=True))
    short, long = model.predict([features("s", 100), features("l", 3000)], 100.0)
    for name in NAMES:
        assert long.alone_ttft_ms[name] > 1.5 * short.alone_ttft_ms[name]


def test_they_follow_what_an_instance_has_shown(shipped):
    model = PredictionModel(shipped)
    model.observe(snapshot(view("a"), view("b")))
    for number in range(60):
        model.learn(completion(f"a{number}", instance="a", tpot_ms=10.0, ttft_ms=40.0))
        model.learn(completion(f"b{number}", instance="b", tpot_ms=40.0, ttft_ms=160.0))
    model.observe(snapshot(view("a"), view("b"), at_s=101.0, alone=True))
    (cost,) = model.predict([features()], 101.0)
    assert cost.alone_tpot_ms["b"] > 2.0 * cost.alone_tpot_ms["a"]
    assert cost.alone_ttft_ms["b"] > 2.0 * cost.alone_ttft_ms["a"]


def test_instances_of_one_kind_share_a_row():
    def state(name: str, load: int, speed: Step, hardware: str = "1xl4", **changes) -> InstanceState:
        loaded_so = view(name, in_flight=load, n_run=4 + load, queued_for=3.0 * load, **changes)
        return InstanceState(loaded_so, speed, 0.1 * load, 1.0, hardware)

    one = Step(20.0, 0.5, 0.1)
    states = [
        state("a", 1, one), state("b", 9, Step(20.0, 0.5, 0.1, samples=7)), state("c", 1, Step(21.0, 0.5, 0.1)), state("d", 1, one, "h100"),
        state("e", 1, one, token_budget=512), state("f", 1, one, engine=healthy("f")), state("g", 0, one),
    ]  # fmt: skip
    fleet = Fleet(states, alone=True)
    assert fleet.alone_at.tolist() == [7, 7, 8, 9, 10, 11, 7]
    assert len(fleet) == len(fleet.hardware) == 12
    prompts = np.array([300.0])
    rows = fleet.rows(prompts, np.array([50.0]), fleet.analytic(prompts)[0])
    load = [
        FEATURES.index(name)
        for name in FEATURES
        if name.startswith(("in_flight", "occup", "log_que", "expected", "log_in_f", "engine", "kv"))
    ]
    assert len(load) == 8
    assert not rows[7:][:, load].any()
    assert len(Fleet(states).alone_at) == 0
    assert len(Fleet(states)) == 7


def test_an_answer_of_many_instances_names_the_same_ones_without_load():
    model = PredictionModel(None)
    model.observe(snapshot(*(view(f"i{number:03d}", in_flight=number % 16) for number in range(3 * NAMED)), alone=True))
    (cost,) = model.predict([features()], 100.0)
    assert len(cost.ttft_ms) == NAMED
    assert list(cost.alone_ttft_ms) == list(cost.alone_tpot_ms) == list(cost.ttft_ms)
