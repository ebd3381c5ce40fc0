"""qos: views beside the same figures worked out one by one; the order of arrival and the batches that things come in play no part."""

import math
from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from control_kit import completion, instance, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_kit import of_type

from hmas.agents.qos.agent import QosAgent
from hmas.agents.qos.long_view import LABELS_MAX
from hmas.agents.qos.model import BACKLOG_MAX, IDS_MAX, QosModel
from hmas.agents.qos.sketch import ALPHA, KEPT
from hmas.agents.qos.tallies import ARRIVALS_MAX, LONG_PANES, SHORT_PANES
from hmas.controller.bus.codec import decode, encode
from hmas.controller.core.messages import Completion, LongView, ShortView, SystemSnapshot
from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.core.types import OutcomeKind, TaskType
from hmas.engines.base import EngineSnapshot

SHORT_S, LONG_S = 5.0, 60.0
TASKS = list(TaskType)
NEVER = {"ttft_ms": -1.0, "tpot_ms": -1.0, "slo_met": False, "output_tokens": 0}


def traffic(seed: int, *, rate: float, seconds: float, from_s: float = 1000.0, tenants: int = 5) -> list[Completion]:
    """Completions of every kind, in order of their ends."""
    rng, made = np.random.default_rng(seed), []
    number = int(rng.poisson(rate * seconds))
    for index, at_s in enumerate(np.sort(from_s + seconds * rng.random(number)).tolist()):
        ttft_ms, total_ms = float(np.exp(rng.normal(6, 2))), float(np.exp(rng.normal(8, 2)))
        wait_ms = ttft_ms * float(rng.random())
        changes = {
            "ttft_ms": ttft_ms, "tpot_ms": float(np.exp(rng.normal(3, 1))), "queue_ms": wait_ms, "total_ms": wait_ms + total_ms,
            "service_ttft_ms": ttft_ms - wait_ms, "tenant": f"t{int(rng.zipf(1.5)) % tenants}",
            "task_type": TASKS[int(rng.integers(0, 14))],
            "prompt_tokens": int(np.exp(rng.normal(6, 2))), "output_tokens": int(np.exp(rng.normal(4, 2))),
            "arrival_s": at_s - total_ms / 1000.0, "slo_met": bool(rng.random() < 0.7),
        }  # fmt: skip
        fate = rng.random()
        if fate < 0.1:
            changes |= NEVER | {"outcome": OutcomeKind.SHED, "queue_ms": -1.0, "status": 429}
        elif fate < 0.15:
            changes |= NEVER | {"outcome": OutcomeKind.CANCELLED, "total_ms": 10.0}
        made.append(completion(index, at_s, **changes))
    return made


def play(model: QosModel, completions: list[Completion], seconds: float, from_s: float = 1000.0) -> list:
    views, at = [], 0
    for step in range(1, int(seconds * 10) + 1):
        now_s = from_s + step / 10
        while at < len(completions) and completions[at].sent_s <= now_s:
            model.complete(completions[at], now_s)
            at += 1
        views += model.observe(snapshot(now_s, arrived=at + 8, ended=at), now_s)
    return views


def near(said: float, true: float, low: float) -> bool:
    return abs(said - true) <= ALPHA * true * (1 + 1e-9) + low


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [2.0, 40.0])
def test_both_views_say_what_the_completions_say_within_their_error(seed, rate):
    completions = traffic(seed, rate=rate, seconds=90.0)
    views = play(QosModel(short_window_s=SHORT_S, long_window_s=LONG_S), completions, 90.0)
    short = [view for view in views if isinstance(view, ShortView)][-1]
    long = [view for view in views if isinstance(view, LongView)][-1]
    view: ShortView | LongView
    for view, window_s, panes in ((short, SHORT_S, SHORT_PANES), (long, LONG_S, LONG_PANES)):
        pane_s = window_s / panes
        start_s = (math.floor(view.sent_s / pane_s) - panes) * pane_s
        inside = [one for one in completions if start_s <= one.sent_s <= view.sent_s]
        span_s = view.span_s if isinstance(view, ShortView) else view.window_s
        assert span_s == pytest.approx(view.sent_s - start_s)
        assert window_s - 1e-6 <= span_s <= window_s + pane_s + 1e-6
        for said, true in ((view.ttft_ms, [c.ttft_ms for c in inside]), (view.tpot_ms, [c.tpot_ms for c in inside])):
            values = sorted(value for value in true if value >= 0)
            assert said.count == len(values)
            assert all(near(getattr(said, f"p{q}"), percentile(values, q), 0.01) for q in (50, 95, 99))
        judged = [c for c in inside if c.outcome is not OutcomeKind.CANCELLED]
        assert view.ended == len(judged)
        assert view.goodput_rps == pytest.approx(sum(c.slo_met for c in judged) / span_s)
        assert view.violation_rate == pytest.approx(1 - sum(c.slo_met for c in judged) / max(1, len(judged)))
    completed = [c for c in inside if c.outcome is OutcomeKind.COMPLETED]
    assert long.prompt_mean == pytest.approx(np.mean([c.prompt_tokens for c in inside]))
    assert long.output_mean == pytest.approx(np.mean([c.output_tokens for c in completed]))
    for told, lengths in (
        (long.prompt_tokens, [c.prompt_tokens for c in inside]),
        (long.output_tokens, [c.output_tokens for c in completed]),
    ):
        assert told.count == len(lengths)
        assert all(near(getattr(told, f"p{q}"), percentile(sorted(lengths), q), 1.0) for q in (50, 90, 99))
        assert told.cv == pytest.approx(np.std(lengths) / np.mean(lengths), rel=3 * ALPHA)
    service = np.array([c.total_ms - c.queue_ms for c in completed])
    assert long.total_cv == pytest.approx(service.std() / service.mean(), rel=3 * ALPHA)
    assert long.long_share == pytest.approx(np.mean(service > 2 * service.mean()), abs=3 / len(service))
    tasks = Counter(str(c.task_type) for c in inside if c.task_type is not TaskType.UNKNOWN)
    assert long.by_task == pytest.approx({task: n / tasks.total() for task, n in tasks.items()})
    assert long.by_tenant == pytest.approx({tenant: n / len(inside) for tenant, n in Counter(c.tenant for c in inside).items()})
    assert long.tenant_error == 0.0
    dispatched = [c for c in inside if c.queue_ms >= 0]
    assert long.late_service == pytest.approx(np.mean([c.queue_ms > c.ttft_slo_ms for c in dispatched]))


@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 2000), max_size=60))
@settings(max_examples=15)
def test_the_batches_that_telemetry_comes_in_change_nothing(seed, cuts):
    messages: list[Completion | SystemSnapshot] = sorted(
        [*traffic(seed, rate=20.0, seconds=20.0), *(snapshot(1000.0 + step / 10, arrived=2 * step, ended=step) for step in range(1, 200))],
        key=lambda message: message.sent_s,
    )
    one_by_one, in_batches = QosAgent(QosModel()), QosAgent(QosModel())
    # Batches come late: what has gathered is handled at the time of the last of it.
    edges = sorted({0, len(messages), *(min(cut, len(messages)) for cut in cuts)})
    said = [view for message in messages for view in one_by_one.handle([message], message.sent_s)]
    heard = []
    for first, last in pairwise(edges):
        heard += in_batches.handle(messages[first:last], messages[last - 1].sent_s)
    assert said == heard
    assert [msgspec.json.encode(view) for view in said] == [msgspec.json.encode(view) for view in heard]


@given(seed=st.integers(0, 1000), delays=st.lists(st.floats(0.0, 40.0), min_size=1, max_size=20))
@settings(max_examples=15)
def test_what_comes_late_counts_in_its_own_time(seed, delays):
    """Delayed by up to 40 s, shuffled among each other: the long view is the same as with everything in time."""
    completions = traffic(seed, rate=10.0, seconds=40.0)
    late = sorted(completions, key=lambda one: one.sent_s + delays[int(one.request_id) % len(delays)])
    views = []
    for order in (completions, late):
        model = QosModel()
        model.observe(snapshot(1000.0, arrived=0, ended=0), 1000.0)
        for one in order:
            model.complete(one, 1045.0)
        views.append([v for v in model.observe(snapshot(1045.0, arrived=9, ended=9), 1045.0) if isinstance(v, LongView)][-1])
    assert views[0] == views[1]
    assert views[0].telemetry.late == 0


def test_what_is_wrong_with_the_telemetry_is_counted():
    model = QosModel()
    model.observe(snapshot(1000.0, arrived=0, ended=0), 1000.0)
    model.complete(completion(1, 930.0), 1000.0)
    for _ in range(3):
        model.complete(completion(2, 999.0), 1000.0)
    model.complete(completion(3, 1030.0), 1000.0)
    model.observe(snapshot(999.0, arrived=0, ended=0), 1000.0)
    (short, *_) = model.observe(snapshot(1000.2, arrived=3, ended=3, gateway="another"), 1000.2)
    told = short.telemetry
    assert (told.late, told.duplicates, told.ahead, told.unordered, told.restarts) == (1, 2, 1, 1, 1)
    assert short.ended == 2


@pytest.mark.parametrize(("kind", "low", "high"), [("even", 0.0, 0.05), ("poisson", 0.6, 1.5), ("bursts", 20.0, 60.0)])
def test_dispersion_tells_bursts_from_even_arrivals(kind, low, high):
    rng, model, arrived, views = np.random.default_rng(3), QosModel(), 0, []
    for step in range(1, 700):
        now_s = 1000.0 + step / 10
        rate = 20.0 if kind != "bursts" else 60.0 if int(now_s) % 6 < 2 else 0.0
        arrived += 2 if kind == "even" else int(rng.poisson(rate / 10))
        views += [v for v in model.observe(snapshot(now_s, arrived=arrived, ended=arrived), now_s) if isinstance(v, LongView)]
    assert low <= views[-1].arrival_dispersion <= high
    assert views[-1].arrival_rps == pytest.approx(20.0, rel=0.2)


def test_the_views_have_what_is_overdue_runs_and_is_long():
    views = QosModel().observe(snapshot(1000.0, arrived=30, ended=0, queued=20, queued_long=5, overdue=3), 1000.0)
    short, long = of_type(ShortView, views[0]), of_type(LongView, views[1])
    assert (short.overdue, short.running, long.long_backlog) == (3, 10, 5)


def test_utilization_names_the_signal_that_it_stands_on():
    silent = instance(name="silent", tpot_pressure=0.1, kv_committed=0.5)
    spoken = EngineSnapshot(engine="e", taken_s=1000.0, healthy=True, running=8, waiting=3, kv_usage=0.6)
    seen = [silent, instance(name="full", tpot_pressure=0.2, engine=spoken), instance(name="slow", tpot_pressure=0.9, engine=spoken)]
    short = of_type(ShortView, QosModel().observe(snapshot(1000.0, arrived=24, ended=0, instances=seen), 1000.0)[0])
    assert short.utilization == {"silent": 0.5, "full": 0.6, "slow": 0.9}
    assert short.utilization_source == {"silent": "kv_committed", "full": "kv_usage", "slow": "tpot_pressure"}
    assert short.kv_usage == {"silent": 0.5, "full": 0.6, "slow": 0.6}
    assert short.fallbacks == ["kv_usage:silent", "throughput"]
    assert short.running == 24


def test_names_without_end_keep_their_bounds():
    """Ten thousand tenants and a heavy one among them: memory, wire size and the share's error stay bounded."""
    rng, model = np.random.default_rng(5), QosModel()
    for step in range(600):
        now_s = 1000.0 + step / 10
        for index in range(40):
            number = 40 * step + index
            name = "heavy" if number % 10 == 0 else f"tenant-{int(rng.integers(0, 10_000))}"
            model.complete(completion(number, now_s, tenant=name), now_s)
        views = model.observe(snapshot(now_s, arrived=number, ended=number), now_s)
    long = next(v for v in [*views, *model.observe(snapshot(1065.0, arrived=number, ended=number), 1065.0)] if isinstance(v, LongView))
    assert len(long.by_tenant) <= LABELS_MAX + 1
    assert sum(long.by_tenant.values()) == pytest.approx(1.0)
    assert long.tenant_error <= 2 / (KEPT + 1)
    assert 0.1 - long.tenant_error - 1e-9 <= long.by_tenant["heavy"] <= 0.1 + 1e-9
    assert len(msgspec.json.encode(long)) < 8_000
    tallies = model.tallies
    assert len(tallies.by_pane) <= LONG_PANES + 1
    assert all(len(part.held) <= 2 * KEPT for part in tallies.by_pane.values())
    assert len(tallies.arrivals_s) <= 2 * ARRIVALS_MAX
    assert len(model.seen) <= IDS_MAX
    assert len(model.backlog) <= BACKLOG_MAX


@given(
    tokens=st.integers(-(2**70), 2**70), predicted=st.floats(-1e300, 1e300), ms=st.floats(-1e300, 1e300), count=st.integers(-(2**70), 2**70)
)
def test_figures_beyond_all_measure_break_no_counter(tokens, predicted, ms, count):
    model = QosModel()
    broken = {
        "prompt_tokens": tokens, "output_tokens": tokens, "predicted_output_tokens": predicted, "ttft_ms": ms, "tpot_ms": ms,
        "queue_ms": ms, "total_ms": ms,
    }  # fmt: skip
    for number, outcome in enumerate((OutcomeKind.COMPLETED, OutcomeKind.SHED)):
        model.complete(completion(number, 1000.0, outcome=outcome, **broken), 1000.0)
    model.observe(snapshot(1000.0, arrived=0, ended=0), 1000.0)
    views = model.observe(snapshot(1006.0, arrived=count, ended=0, overdue=count, queued_long=count), 1006.0)
    for view in views:
        assert decode(encode(view)) == view, "every number is one that the bus can carry"
        assert 0.0 <= view.violation_rate <= 1.0
