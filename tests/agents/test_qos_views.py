"""qos: what the views say, with duplicates, gaps and garbage in the telemetry."""

from itertools import pairwise

import pytest
from control_kit import completion, instance, snapshot
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hmas.agents.qos.model import QosModel
from hmas.controller.core.messages import LongView, ShortView
from hmas.controller.core.types import OutcomeKind
from hmas.engines.base import EngineSnapshot


def run(model: QosModel, seconds: float, *, rps: float = 10.0, each=None, repeat: int = 1) -> list:
    """A steady run: each request ends 0.1 s after it came. Returns all views."""
    views, arrived = [], 0
    for step in range(int(seconds * 10)):
        now_s = 1000.0 + step / 10
        while arrived < rps * step / 10:
            arrived += 1
            for _ in range(repeat):
                model.complete(completion(arrived, now_s, arrival_s=now_s - 0.1, **(each(arrived) if each else {})), now_s)
        views += model.observe(snapshot(now_s, arrived=arrived, ended=arrived), now_s)
    return views


def shorts(views) -> list[ShortView]:
    return [v for v in views if isinstance(v, ShortView)]


def longs(views) -> list[LongView]:
    return [v for v in views if isinstance(v, LongView)]


def test_rates_and_shares():
    def each(number):
        late = number % 5 == 0
        return {"ttft_ms": 9000.0 if late else 400.0, "slo_met": not late, "queue_ms": 8800.0 if late else 100.0}

    views = run(QosModel(), 90.0, each=each)
    short, long = shorts(views)[-1], longs(views)[-1]
    assert short.violation_rate == pytest.approx(0.2, abs=0.05)
    assert short.ttft_violation_rate == pytest.approx(0.2, abs=0.05)
    assert short.tpot_violation_rate == 0.0
    assert short.goodput_rps == pytest.approx(8.0, rel=0.1)
    assert long.arrival_rps == pytest.approx(10.0, rel=0.05)
    assert long.deadline_miss_share == pytest.approx(0.2, abs=0.05)
    assert long.goodput_rate == pytest.approx(0.8, abs=0.05)


def test_what_comes_twice_counts_once():
    once, twice = run(QosModel(), 20.0), run(QosModel(), 20.0, repeat=2)
    assert (shorts(once)[-1].telemetry.duplicates, shorts(twice)[-1].telemetry.duplicates) == (0, 198)
    assert structs.replace(shorts(twice)[-1], telemetry=shorts(once)[-1].telemetry) == shorts(once)[-1]
    assert sum(len(v.recent) for v in shorts(twice)) == len({c.request_id for v in shorts(twice) for c in v.recent})


def test_fairness_sees_a_tenant_that_is_starved():
    def each(number):
        starved = number % 2 == 0
        return {
            "tenant": "b" if starved else "a",
            **({"outcome": OutcomeKind.TIMED_OUT, "output_tokens": 0, "slo_met": False, "ttft_ms": -1.0} if starved else {}),
        }

    assert longs(run(QosModel(), 90.0, each=each))[-1].fairness < 0.7
    even = longs(run(QosModel(), 90.0, each=lambda n: {"tenant": "ab"[n % 2]}))[-1]
    assert even.fairness > 0.95
    assert even.fairness_tenants == 2


def test_fairness_goes_by_the_weights_that_the_gateway_has_in_force():
    def fair(weights: dict[str, float]) -> float:
        model, found = QosModel(), []
        for number in range(600):
            # Of nine answers eight are gold's, and both ask for more.
            now_s, served = 1000.0 + number / 10, "gold" if number % 9 else "bronze"
            model.complete(completion(3 * number, now_s, tenant=served), now_s)
            for place, tenant in enumerate(("gold", "bronze"), 1):
                shed = {"outcome": OutcomeKind.SHED, "output_tokens": 0, "slo_met": False, "ttft_ms": -1.0}
                model.complete(completion(3 * number + place, now_s, tenant=tenant, **shed), now_s)
            told = snapshot(now_s, arrived=3 * number, ended=3 * number)
            found += longs(model.observe(structs.replace(told, tenant_weights=weights), now_s))
        return found[-1].fairness

    assert fair({}) < 0.7
    assert fair({"gold": 8.0}) > 0.95


def test_one_tenant_is_no_measure_of_fairness():
    alone = longs(run(QosModel(), 90.0))[-1]
    assert (alone.fairness, alone.fairness_tenants) == (1.0, 1)


def test_a_stuck_loop_is_named_and_load_alone_is_not():
    model, views = QosModel(), []
    for step in range(200):
        views += model.observe(
            snapshot(1000.0 + step / 10, arrived=50, ended=0, queued=50, instances=[instance(in_flight=0)]), 1000.0 + step / 10
        )
    assert "stuck" in shorts(views)[-1].anomalies
    model, views = QosModel(), []
    for step in range(200):
        arrived, ended = 500 + 10 * step, step
        seen = snapshot(1000.0 + step / 10, arrived=arrived, ended=ended, queued=arrived - ended - 16, instances=[instance(in_flight=16)])
        views += model.observe(seen, 1000.0 + step / 10)
    assert shorts(views)[-1].anomalies == []


def test_where_an_engine_is_down_those_that_wait_may_wait_for_it():
    for away in ({"draining": True}, {"engine": EngineSnapshot(engine="b", taken_s=1000.0, healthy=False)}):
        model, views = QosModel(), []
        fleet = [instance(in_flight=0), instance(name="b", in_flight=0, **away)]
        for step in range(200):
            views += model.observe(snapshot(1000.0 + step / 10, arrived=50, ended=0, queued=50, instances=fleet), 1000.0 + step / 10)
        assert shorts(views)[-1].anomalies == []


@pytest.mark.parametrize(("turns", "named"), [(False, ["leaked"]), (True, [])])
def test_a_window_is_leaking_where_it_is_always_the_same_one(turns, named):
    model, views = QosModel(), []
    for step in range(200):
        at_s, idle = 1000.0 + step / 10, step % 2 if turns else 0
        fleet = [
            instance(
                name=name,
                in_flight=4,
                n_run=4,
                engine=EngineSnapshot(engine=name, taken_s=at_s, healthy=True, kv_usage=0.1, running=0 if place == idle else 4, waiting=0),
            )
            for place, name in enumerate("ab")
        ]
        views += model.observe(snapshot(at_s, arrived=13 + step, ended=step, queued=5, instances=fleet), at_s)
    assert shorts(views)[-1].anomalies == named


def test_a_window_leaks_until_what_its_engine_does_not_have_is_gone():
    model, named = QosModel(), list[list[str]]()
    for step in range(400):
        at_s = 1000.0 + step / 10
        bypassed = bool(named and named[-1])
        running, lost, queued = 8 if bypassed else 0, 4 if step < 300 else 0, 5 if step < 300 else 0
        engine = EngineSnapshot(engine="a", taken_s=at_s, healthy=True, kv_usage=0.1, running=running, waiting=0)
        fleet = [instance(name="a", in_flight=lost + running, n_run=256 if bypassed else 4, engine=engine)]
        arrived = queued + lost + running + 4
        views = model.observe(snapshot(at_s, arrived=arrived, ended=4, queued=queued, instances=fleet), at_s)
        named += [view.anomalies for view in shorts(views)]
    changes = sum(before != after for before, after in pairwise(named))
    assert (["leaked"] in named, named[-1], changes) == (True, [], 2), "the bypass that it calls for does not end it"


def test_counters_that_do_not_add_up_are_named():
    model, views = QosModel(), []
    for step in range(100):
        seen = snapshot(1000.0 + step / 10, arrived=100, ended=10, queued=0, instances=[instance(in_flight=5)])
        views += model.observe(seen, 1000.0 + step / 10)
    assert "conservation" in shorts(views)[-1].anomalies


@given(
    times=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    tpot=st.floats(-10, 1e9),
)
def test_clock_jumps_and_odd_figures_do_not_break_it(times, tpot):
    model = QosModel()
    for number, now_s in enumerate(times):
        model.complete(completion(number, now_s, tpot_ms=tpot), now_s)
        for view in model.observe(snapshot(now_s, arrived=number + 1, ended=number + 1), now_s):
            assert 0.0 <= view.violation_rate <= 1.0
