"""Several models on one gateway: what waits for one, or is late there, changes nothing for the instances of another."""

import msgspec
import prediction_kit
import pytest
from control_kit import completion, instance, short_view, snapshot

from hmas.agents.prediction.model import PredictionModel
from hmas.agents.prediction.regressor import load_regressor
from hmas.agents.qos.anomalies import HOLD_S, LEAKED, STUCK, AnomalyWatch
from hmas.agents.statera.model import StateraModel
from hmas.agents.statera.recent_misses import ModelMisses
from hmas.controller.core.types import OutcomeKind
from hmas.engines.base import EngineSnapshot


@pytest.fixture(scope="module")
def shipped():
    return load_regressor()


def windows(waiting: dict[str, float]) -> dict[str, int]:
    """The windows of two full instances, both with room to spare, before statera has seen enough to open a window unasked."""
    model, n_run = StateraModel(period_s=0.25, n_run_start=32), {"a": 32, "b": 32}
    for step in range(7):
        now_s = 0.25 * step
        seen = [
            instance(name=name, n_run=n_run[name], in_flight=n_run[name], tpot_pressure=0.3, models=[f"m-{name}"], queued_for=queued)
            for name, queued in waiting.items()
        ]
        view = short_view(now_s, instances=seen, queued=50, utilization={"a": 0.3, "b": 0.3})
        n_run |= {action.instance: action.n_run for action in model.observe(view, now_s)}
    return n_run


def test_a_queue_opens_only_the_window_that_it_waits_for():
    opened = windows({"a": 0.0, "b": 50.0})
    assert opened["a"] == 32
    assert opened["b"] > 80


def test_misses_of_first_tokens_count_by_model():
    misses, seen = ModelMisses(), [instance(name="a", models=["m"]), instance(name="b", models=["n"]), instance(name="c")]
    misses.meet(seen)
    for number in range(20):
        misses.learn(completion(number, 10.0, model="m"))
        never = {"outcome": OutcomeKind.SHED, "status": 503, "ttft_ms": -1.0, "slo_met": False, "instance": ""}
        misses.learn(completion(number, 10.0, model="n", **({"ttft_ms": 9000.0} if number % 2 else never)))
        misses.learn(completion(number, 10.0, model="of no instance"))
    view = short_view(10.0, instances=seen, ttft_violation_rate=0.5)
    assert [misses.share(one, view, 10.0) for one in seen] == [0.0, 1.0, 0.5], "an instance that may serve any has the gateway's share"
    whole = [completion(100 + number, 10.0, model="m", ttft_ms=-1.0, slo_met=number > 9) for number in range(20)]
    for one in whole:
        misses.learn(one)
    assert misses.share(seen[0], view, 10.0) == 0.25, "an answer in one piece is late if it missed its SLO"
    alike = [instance(name="a", models=["m"]), instance(name="b", models=["m"])]
    misses.meet(alike)
    assert misses.share(alike[0], view, 10.0) == 0.5, "of one set of models the gateway's share is its own"


@pytest.mark.parametrize("late", ["m", "n"])
def test_the_guard_of_a_model_tightens_whatever_another_misses(late: str):
    """A fifth of the requests of `m` miss TPOT. That model's guard gets stricter, unless more of its own requests miss TTFT."""
    model, guard = StateraModel(period_s=0.25), 1.0
    for step in range(160):
        now_s = 0.25 * step
        seen = [instance(name="a", models=["m"]), instance(name="b", models=["n"])]
        ended = [
            completion(100 * step + part, now_s, instance=name, model=served, tpot_ms=80.0 if served == "m" and part % 5 == 0 else 12.0)
            for part in range(5)
            for name, served in (("a", "m"), ("b", "n"))
        ]
        ended += [
            completion(100 * step + 50 + part, now_s, instance="a" if late == "m" else "b", model=late, ttft_ms=9000.0) for part in range(5)
        ]
        view = short_view(now_s, instances=seen, recent=ended, utilization={"a": 0.8, "b": 0.8}, ttft_violation_rate=0.33)
        guard = next((action.guard for action in model.observe(view, now_s) if action.instance == "a"), guard)
    assert (guard < 1.0) == (late == "n")


def test_a_queue_costs_no_request_of_another_model_time(shipped):
    def answer(queued_for: float):
        model = PredictionModel(shipped)
        views = [prediction_kit.view("a", models=["other"], queued_for=queued_for), prediction_kit.view("b", models=["m"])]
        model.observe(prediction_kit.snapshot(*views, queued=int(queued_for)))
        return model.predict([prediction_kit.features()], 100.0)[0]

    assert answer(60.0).ttft_ms == answer(0.5).ttft_ms


@pytest.mark.parametrize(("waits_for", "found"), [("a", [LEAKED]), ("b", [])])
def test_only_an_instance_that_requests_wait_for_leaks(waits_for: str, found: list[str]):
    watch = AnomalyWatch()
    named: list[str] = []
    for step in range(int(10 * (HOLD_S[LEAKED] + 2))):
        now_s = 1000.0 + step / 10
        empty = EngineSnapshot(engine="a", taken_s=now_s, healthy=True, kv_usage=0.0)
        seen = [instance(name="a", in_flight=4, n_run=4, engine=empty), instance(name="b", in_flight=4, n_run=16)]
        seen = [msgspec.structs.replace(one, queued_for=5.0 * (one.name == waits_for)) for one in seen]
        named = watch.observe(snapshot(now_s, arrived=13 + step, ended=step, queued=5, instances=seen), now_s)
    assert named == found


def test_a_model_is_stuck_beside_one_that_nothing_waits_for():
    watch = AnomalyWatch()
    named: list[str] = []
    for step in range(int(10 * (HOLD_S[STUCK] + 2))):
        now_s = 1000.0 + step / 10
        seen = [instance(name="a", in_flight=8), instance(name="b", in_flight=0, queued_for=5.0)]
        named = watch.observe(snapshot(now_s, arrived=13, ended=0, queued=5, instances=seen), now_s)
    assert named == [STUCK]
