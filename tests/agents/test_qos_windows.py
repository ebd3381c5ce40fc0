"""qos: windows, counters and flows under late, repeated and missing telemetry."""

from typing import Any

import pytest
from control_kit import completion, instance, snapshot
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import of_type

from hmas.agents.qos.model import RECENT_MAX, QosModel
from hmas.agents.qos.outcomes import Shares, fairness, missed_in_queue, shares
from hmas.agents.qos.tallies import Tallies, tally
from hmas.agents.qos.windows import TimeWindow, slope, variation
from hmas.controller.core.messages import Completion, LongView, ShortView, SystemSnapshot
from hmas.controller.core.objectives import is_judged, missed_tpot, missed_ttft
from hmas.controller.core.types import OutcomeKind
from hmas.engines.base import EngineSnapshot


def engine(now_s: float, **changes) -> EngineSnapshot:
    values: dict[str, Any] = {"engine": "i0", "taken_s": now_s, "healthy": True, "running": 8, "kv_usage": 0.4}
    return EngineSnapshot(**(values | changes))


@given(times=st.lists(st.floats(0, 100), max_size=200), limit=st.integers(1, 50))
def test_a_window_keeps_order_span_and_bound(times, limit):
    window: TimeWindow[int] = TimeWindow(span_s=10.0, limit=limit)
    kept: list[float] = []
    for number, at_s in enumerate(times):
        window.add(at_s, number)
        kept = sorted([*kept, at_s])[-limit:]
        assert len(window) <= limit
    window.prune(50.0)
    left = [times[number] for number in window.all()]
    assert left == sorted(left) == [at_s for at_s in kept if at_s >= 40.0]


def test_slope_and_variation():
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
    assert slope([(1.0, 1.0), (1.0, 9.0)]) == 0.0
    assert slope([(1.7e9 + step / 10, 7e6 - 3 * step) for step in range(50)]) == pytest.approx(-30.0, rel=1e-6)
    assert variation([1.0, 1.0, 1.0]) == 0.0
    assert variation([]) == 0.0


def test_what_the_client_caused_is_not_judged():
    assert not is_judged(completion(1, 0.0, status=400, slo_met=False))
    left = {"outcome": OutcomeKind.CANCELLED, "ttft_ms": -1.0, "slo_met": False}
    assert not is_judged(completion(1, 0.0, total_ms=500.0, **left))
    assert is_judged(completion(1, 0.0, total_ms=9000.0, **left))
    assert is_judged(completion(1, 0.0, status=429, outcome=OutcomeKind.REJECTED))


def test_an_answer_in_one_piece_is_late_only_where_it_missed_its_slo():
    assert not missed_ttft(completion(1, 0.0, ttft_ms=-1.0, slo_met=True))
    assert missed_ttft(completion(1, 0.0, ttft_ms=-1.0, slo_met=False, outcome=OutcomeKind.SHED))


@pytest.mark.parametrize(("queue_ms", "too_slow"), [(0.0, True), (500.0, True), (1500.0, False)])
def test_an_answer_in_one_piece_that_is_late_missed_its_pace_or_waited_too_long(queue_ms: float, too_slow: bool):
    """Two answers of 100 tokens side by side, due 1000 + 99 x 40 = 4960 ms after the arrival, end after 6000 ms."""
    late = completion(
        1, 0.0, ttft_ms=-1.0, tpot_ms=-1.0, slo_met=False, queue_ms=queue_ms, total_ms=6000.0, output_tokens=200, sequences=2,
        ttft_slo_ms=1000.0, tpot_slo_ms=40.0,
    )  # fmt: skip
    assert (missed_tpot(late), missed_ttft(late)) == (too_slow, not too_slow)


def test_waiting_is_told_from_slow_service():
    assert missed_in_queue(completion(1, 0.0, queue_ms=5000.0, ttft_ms=5300.0, service_ttft_ms=300.0))
    assert not missed_in_queue(completion(1, 0.0, queue_ms=10.0, ttft_ms=5010.0, service_ttft_ms=5000.0))


def counted(completions) -> Tallies:
    tallies = Tallies(5.0, 60.0)
    for one in completions:
        assert tallies.add(one, one.sent_s)
    return tallies


def shares_of(completions, more_overdue: int) -> Shares:
    return shares(tally(counted(completions).short.total())._replace(overdue=more_overdue))


def test_a_miss_counts_when_it_is_certain_and_only_once():
    fine = [completion(number, 0.0) for number in range(8)]
    late = {"slo_met": False, "ttft_ms": 9000.0, "queue_ms": 8800.0}
    growing = shares_of(fine, more_overdue=8)
    assert (growing.missed, growing.ttft, growing.queue) == (0.5, 0.5, 0.5)
    assert growing.tpot == 0.0
    worked_off = shares_of([*fine, *(completion(100 + number, 0.0, **late) for number in range(8))], more_overdue=-8)
    assert worked_off.missed == 0.0


@given(
    asked=st.lists(st.floats(1, 1000), min_size=2, max_size=6),
    scale=st.floats(0.01, 1.0),
)
def test_cutting_all_back_alike_is_fair(asked, scale):
    ended = [
        completion(number, 0.0, tenant=str(number), prompt_tokens=0, output_tokens=int(1000 * min(tokens, scale * max(asked))) + 1,
                   outcome=OutcomeKind.TIMED_OUT, predicted_output_tokens=1000 * tokens)
        for number, tokens in enumerate(asked)
    ]  # fmt: skip
    assert fairness(counted(ended).tenants().held, {})[0] > 0.99


def feed(model: QosModel, seconds: float, **changes) -> list:
    views = []
    for step in range(int(seconds * 10)):
        now_s = 1000.0 + step / 10
        views += model.observe(snapshot(now_s, arrived=step, ended=step, **changes), now_s)
    return views


def test_views_keep_their_pace():
    views = feed(QosModel(long_period_s=5.0), 60.0)
    assert sum(isinstance(view, ShortView) for view in views) == pytest.approx(300, abs=3)
    assert sum(isinstance(view, LongView) for view in views) == 12


def test_completions_are_handed_on_once_and_in_bounds():
    model = QosModel()
    for number in range(600):
        model.complete(completion(number, 1000.0), 1000.0)
        model.complete(completion(number, 1000.0), 1000.0)
    handed = [view.recent for view in feed(model, 3.0) if isinstance(view, ShortView)]
    assert max(len(recent) for recent in handed) <= RECENT_MAX
    assert [c.request_id for recent in handed for c in recent] == [f"{number:08d}" for number in range(600)]


def test_a_restart_goes_on_with_full_windows_and_hands_on_what_was_still_to_come():
    first = QosModel()
    telemetry: list[Completion | SystemSnapshot] = []
    for step in range(300):
        now_s = 1000.0 + step / 10
        telemetry += [completion(step, now_s), snapshot(now_s, arrived=step + 1, ended=step + 1)]
    for message in telemetry:
        first.replay(message)
    first.complete(of_type(Completion, telemetry[-2]), 1030.0)
    short = of_type(ShortView, first.observe(snapshot(1030.0, arrived=301, ended=301), 1030.0)[0])
    assert short.ended == pytest.approx(50, abs=2)
    assert [c.request_id for c in short.recent] == ["00000299"]


def test_what_was_replayed_and_is_delivered_again_restarts_nothing():
    """A restart that took more than the short window: the bus delivers the last seconds again, which the replay has counted already."""
    model = QosModel()
    telemetry: list[Completion | SystemSnapshot] = []
    for step in range(601):
        now_s = 1000.0 + step / 10
        telemetry += [completion(step, now_s), snapshot(now_s, arrived=step + 1, ended=step + 1)]
    for message in telemetry:
        model.replay(message)
    again = [message for message in telemetry if message.sent_s > 1057.5]
    for message in again:
        if isinstance(message, Completion):
            model.complete(message, 1060.0)
        else:
            assert model.observe(message, 1060.0) == []
    short, long = model.observe(snapshot(1060.1, arrived=602, ended=601), 1060.1)
    assert of_type(LongView, long).ended == pytest.approx(600, abs=2)
    assert of_type(ShortView, short).telemetry.restarts == 0
    assert len(of_type(ShortView, short).recent) == len(again) // 2
    # The mark is gone: the name may belong to another process, whose clock went back.
    (short, *_) = model.observe(snapshot(1052.0, arrived=1, ended=0), 1052.0)
    assert of_type(ShortView, short).telemetry.restarts == 1


def test_a_clock_that_went_back_during_a_restart_is_followed():
    model = QosModel()
    model.replay(snapshot(1000.0, arrived=1, ended=0))
    assert model.observe(snapshot(900.0, arrived=2, ended=0), 900.0)


def test_late_and_unordered_telemetry_falls_into_its_place():
    model = QosModel()
    for number, at_s in enumerate([1004.0, 1001.0, 1003.0, 900.0, 1002.0]):
        model.complete(completion(number, at_s), 1005.0)
    short = of_type(ShortView, model.observe(snapshot(1005.0, arrived=10, ended=10), 1005.0)[0])
    assert short.ended == 4
    assert len(short.recent) == 5
    assert model.observe(snapshot(1004.0, arrived=9, ended=9), 1005.0) == []


def test_a_gateway_that_starts_anew_makes_no_negative_rates():
    model = QosModel()
    feed(model, 20.0)
    views = []
    for step in range(100):
        now_s = 1020.0 + step / 10
        views += model.observe(snapshot(now_s, arrived=step // 10, ended=step // 10), now_s)
    shorts = [view for view in views if isinstance(view, ShortView)]
    assert all(view.arrival_rps >= 0 for view in shorts)
    assert shorts[-1].arrival_rps == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("jump_s", [-500.0, 500.0])
def test_a_clock_that_jumps_is_followed(jump_s):
    model = QosModel()
    feed(model, 20.0)
    views = []
    for step in range(100):
        now_s = 1020.0 + jump_s + step / 10
        model.complete(completion(step, now_s), now_s)
        views += model.observe(snapshot(now_s, arrived=200 + step, ended=200 + step), now_s)
    last = [view for view in views if isinstance(view, ShortView)][-1]
    assert last.ended == pytest.approx(50, abs=3)


def test_throughput_comes_from_the_engines_and_names_its_stand_in():
    def run(**figures) -> ShortView:
        model, views = QosModel(), []
        for step in range(100):
            now_s = 1000.0 + step / 10
            # The engine restarts half way: its counter begins at 0 again.
            total = 20 * (step if step < 50 else step - 50)
            seen = instance(engine=engine(now_s, generation_tokens_total=total, **figures))
            model.complete(completion(step, now_s, output_tokens=7), now_s)
            views += model.observe(snapshot(now_s, arrived=step + 8, ended=step, instances=[seen]), now_s)
        return [view for view in views if isinstance(view, ShortView)][-1]

    spoken, silent = run(), run(kv_usage=None)
    assert spoken.throughput_tps == pytest.approx(200.0, rel=0.05)
    assert spoken.fallbacks == []
    assert silent.throughput_tps == pytest.approx(70.0, rel=0.1)
    assert silent.fallbacks == ["kv_usage:i0", "throughput"]


def test_utilization_is_the_tighter_of_tpot_and_cache():
    def u(**changes) -> float:
        view = QosModel().observe(snapshot(1000.0, arrived=8, ended=0, instances=[instance(**changes)]), 1000.0)[0]
        return of_type(ShortView, view).utilization["i0"]

    assert u(tpot_pressure=0.8, engine=engine(1000.0, kv_usage=0.4), kv_committed=0.95) == 0.8
    assert u(tpot_pressure=0.3, engine=engine(1000.0, kv_usage=0.4), kv_committed=0.95) == 0.4
    assert u(tpot_pressure=0.3, engine=engine(1000.0, kv_usage=None), kv_committed=0.95) == 0.95
    assert u(tpot_pressure=0.3, engine=engine(900.0, kv_usage=0.1), kv_committed=0.6) == 0.6


def test_demand_beyond_service_shows_as_mismatch():
    def run(served_share: float) -> LongView:
        model, views, ended = QosModel(), [], 0
        for arrived in range(1, 601):
            now_s = 1000.0 + arrived / 10
            if int(arrived * served_share) > ended:
                ended += 1
                model.complete(completion(ended, now_s), now_s)
            views += model.observe(snapshot(now_s, arrived=arrived, ended=ended, queued=arrived - ended), now_s)
        return [view for view in views if isinstance(view, LongView)][-1]

    assert run(1.0).mismatch < 0.1
    assert run(0.5).mismatch == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("engines_count", [True, False])
def test_cached_prompts_hide_no_demand_beyond_service(engines_count):
    """Half of what arrives is served: 300 tokens of prompt each, 250 of them cached, and 100 of output."""
    model, views = QosModel(), []
    for step in range(1, 601):
        now_s, ended = 1000.0 + step / 10, step
        model.complete(completion(ended, now_s, cached_tokens=250), now_s)
        counters = {"prompt_tokens_total": 300 * ended, "generation_tokens_total": 100 * ended, "kv_usage": 0.4 if engines_count else None}
        seen = instance(engine=engine(now_s, **counters))
        told = {"arrived_prompt_tokens_total": 600 * step}
        views += model.observe(snapshot(now_s, arrived=2 * step, ended=ended, queued=step, instances=[seen], **told), now_s)
    long = [view for view in views if isinstance(view, LongView)][-1]
    assert long.mismatch == pytest.approx(1.0, abs=0.1)


def test_long_prompts_show_as_mismatch_before_one_of_them_has_ended():
    """A request a second of 300 and 100 tokens ends; from the 31st on prompts have 3,000 tokens, and none of these ends."""

    def run(*, counted: bool) -> LongView:
        model, views, tokens = QosModel(), [], 0
        for arrived in range(1, 41):
            now_s, tokens = 1000.0 + arrived, tokens + (300 if arrived <= 30 else 3000)
            ended = min(arrived, 30)
            if arrived <= 30:
                model.complete(completion(ended, now_s), now_s)
            told = {"arrived_prompt_tokens_total": tokens} if counted else {}
            views += model.observe(snapshot(now_s, arrived=arrived, ended=ended, queued=arrived - ended, **told), now_s)
        return [view for view in views if isinstance(view, LongView)][-1]

    # A few of some thirty scores see 3,100 tokens a second asked for instead of 400.
    assert run(counted=True).mismatch > run(counted=False).mismatch + 1.0


def test_a_completion_far_ahead_of_the_snapshots_leaves_no_trace_elsewhere():
    """The bus is 100 s behind and a completion is stamped now: the windows move past the snapshots, which count when time has caught up."""
    model, views = QosModel(), []
    model.complete(completion(1, 1100.0), 1100.0)
    for step in range(300):
        now_s = 1000.0 + step / 10
        views += model.observe(snapshot(now_s, arrived=step, ended=0, overdue=step, queued_long=step), 1100.0)
    assert {view.violation_rate for view in views if isinstance(view, ShortView)} == {0.0}
    for step in range(1300):
        now_s = 1030.0 + step / 10
        model.complete(completion(2 + step, now_s), now_s)
        views += model.observe(snapshot(now_s, arrived=300 + step, ended=step), now_s)
    last = [view for view in views if isinstance(view, LongView)][-1]
    assert (last.violation_rate, last.fairness) == (0.0, 1.0)
    assert last.arrival_rps == pytest.approx(10.0, rel=0.05)
    assert last.goodput_rps == pytest.approx(10.0, rel=0.05)
