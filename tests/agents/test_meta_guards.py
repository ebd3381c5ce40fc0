"""Meta's guards: Eq. 12 against load and small samples, bans, bypass, engines that are gone."""

from itertools import pairwise

import pytest
from control_kit import CALM, instance, long_view, short_view

from hmas.agents.meta.guards import Baseline, RollbackWindow, baseline, watched
from hmas.agents.meta.limits import Limits
from hmas.agents.meta.model import MetaModel
from hmas.controller.core.messages import LatencySummary
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.engines.base import EngineSnapshot

BEFORE = Baseline(ttft_ms_p99=1000.0, violation_rate=0.2, arrival_rps=10.0, oldest_wait_ms=1000.0)
UNEVEN = {"by_tenant": {"a": 0.5, "b": 0.5}, "fairness": 0.4, "violation_rate": 0.5}


def tail(p99: float, count: int = 100) -> LatencySummary:
    return LatencySummary(count=count, p50=p99 / 4, p95=p99 / 2, p99=p99)


def verdict(**changes):
    window = RollbackWindow(BEFORE, ratio=1.5, from_s=5.0, until_s=15.0)
    return [window.observe(short_view(now_s, **changes), now_s) for now_s in (6.0, 6.2, 6.4, 6.6, 6.8, 7.0)][-1]


@pytest.mark.parametrize(
    ("changes", "trips"),
    [
        ({"violation_rate": 0.31}, True),
        ({"violation_rate": 0.29}, False),
        ({"violation_rate": 0.31, "ended": 5}, False),
        ({"violation_rate": 0.31, "arrival_rps": 20.0}, False),
        ({"violation_rate": 0.7, "arrival_rps": 20.0}, True),
        ({"violation_rate": 0.25, "ttft_ms": tail(1600.0)}, True),
        ({"violation_rate": 0.15, "ttft_ms": tail(1600.0)}, False),
        ({"violation_rate": 0.25, "ttft_ms": tail(1600.0), "oldest_wait_ms": 2000.0}, False),
        ({"violation_rate": 0.25, "ttft_ms": tail(1600.0, count=3)}, False),
    ],
    ids=[
        "rate",
        "within",
        "few",
        "burst",
        "burst-no-excuse",
        "tail",
        "tail-for-fewer-misses",
        "tail-of-older-waits",
        "tail-of-few-streams",
    ],
)
def test_equation_12(changes, trips):
    assert (verdict(**changes) is not None) == trips


def sparse(from_s: float, until_s: float, *, rps: float, **changes):
    """The views of a rate that is too low for each to be judged, five a second."""
    ended = round(5.0 * rps)
    return [short_view(0.2 * step, ended=ended, arrival_rps=rps, **changes) for step in range(round(5 * from_s), round(5 * until_s))]


def switched(*views, violation_rate: float = 0.05, rps: float = 1.0, **limits) -> tuple[float | None, float]:
    """A switch at 100 s, seen in these views: when it was rolled back (None if it was not), and when the watch ended."""
    long = long_view(100.0, violation_rate=violation_rate, arrival_rps=rps)
    window = watched(sparse(95.0, 100.0, rps=rps, violation_rate=violation_rate), long, Limits(**limits), 5.0, 100.0)
    for view in views:
        if window.observe(view, view.sent_s) is not None:
            return view.sent_s, window.until_s
        if view.sent_s >= window.until_s:
            return None, view.sent_s
    return None, window.until_s


@pytest.mark.parametrize(("rps", "found_s"), [(1.0, 120.0), (2.0, 110.0), (0.4, 150.0), (0.2, None)])
def test_a_harmful_change_at_a_low_rate_is_judged_by_all_requests_since(rps, found_s):
    found, until_s = switched(*sparse(100.0, 200.0, rps=rps, violation_rate=0.6), rps=rps)
    assert found == found_s
    assert until_s <= 160.0, "it is not watched for ever"


@pytest.mark.parametrize(("before", "after"), [(0.05, 0.05), (0.05, 0.15), (0.0, 0.1), (0.2, 0.35), (0.5, 0.7)])
def test_few_requests_that_miss_no_more_than_chance_leave_a_change_alone(before, after):
    assert switched(*sparse(100.0, 200.0, rps=1.0, violation_rate=after), violation_rate=before) == (None, 140.0)


def test_requests_that_wait_past_their_targets_count_where_few_end():
    waiting = [short_view(100.0 + 0.2 * n, ended=1, violation_rate=0.9, overdue=n // 5, arrival_rps=1.0) for n in range(1, 300)]
    assert switched(*waiting)[0] == pytest.approx(125.0, abs=5.0)


def test_a_burst_after_a_lull_is_not_held_against_a_change_that_is_watched_for_longer():
    lull, burst = sparse(100.0, 118.0, rps=1.0, violation_rate=0.05), sparse(118.0, 200.0, rps=30.0, violation_rate=0.9)
    assert switched(*lull, *burst) == (None, 118.0)


def test_an_engine_that_fails_ends_the_count_of_few_requests():
    gone = [instance(engine=EngineSnapshot(engine="i0", taken_s=0.0, healthy=False))]
    views = sparse(100.0, 111.0, rps=1.0, violation_rate=0.9), sparse(111.0, 112.0, rps=1.0, violation_rate=0.9, instances=gone)
    found, _ = switched(*views[0], *views[1], *sparse(112.0, 200.0, rps=1.0, violation_rate=0.9))
    assert found == pytest.approx(127.0, abs=0.3)


def test_where_nobody_streamed_before_a_switch_the_first_streams_say_nothing_against_it():
    before = Baseline(ttft_ms_p99=0.0, violation_rate=0.2, arrival_rps=10.0, oldest_wait_ms=1000.0)
    window = RollbackWindow(before, ratio=1.5, from_s=5.0, until_s=15.0)
    views = [short_view(at_s, violation_rate=0.25, ttft_ms=tail(400.0)) for at_s in (6.0, 6.2, 6.4, 6.6, 6.8, 7.0)]
    assert [window.observe(view, view.sent_s) for view in views] == [None] * 6


def test_one_bad_view_is_no_failure_and_nothing_counts_before_the_window_is_clean():
    window = RollbackWindow(BEFORE, ratio=1.5, from_s=5.0, until_s=15.0)
    bad, good = {"violation_rate": 0.9}, {"violation_rate": 0.1}
    assert [window.observe(short_view(t, **bad), t) for t in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 4.9)] == [None] * 7
    assert [window.observe(short_view(t, **(good if i % 3 == 0 else bad)), t) for i, t in enumerate(range(6, 15))] == [None] * 9


def test_an_engine_that_fails_after_a_switch_is_no_verdict_on_it():
    pair = [instance(name="a"), instance(name="b")]
    before = baseline([short_view(0.0, instances=pair)], long_view(0.0))
    assert before.usable == {"a", "b"}

    def verdict(*seen):
        window = RollbackWindow(before, ratio=1.5, from_s=5.0, until_s=15.0)
        views = [short_view(at_s, violation_rate=0.9, instances=list(seen)) for at_s in (6.0, 6.2, 6.4, 6.6, 6.8, 7.0)]
        return [window.observe(view, view.sent_s) for view in views][-1]

    assert verdict(*pair) is not None
    assert verdict(pair[0]) is None
    assert verdict(pair[0], instance(name="b", engine=EngineSnapshot(engine="b", taken_s=6.0, healthy=False))) is None
    assert verdict(*pair, instance(name="c")) is not None


def test_the_baseline_takes_the_worse_of_lull_and_long_view():
    lull = [short_view(9.0, violation_rate=0.0, ttft_ms=tail(50.0), arrival_rps=1.0), short_view(9.5, ended=3, violation_rate=1.0)]
    before = baseline(lull, long_view(10.0, violation_rate=0.3, ttft_ms=tail(700.0), arrival_rps=8.0))
    assert (before.violation_rate, before.ttft_ms_p99, before.arrival_rps) == (0.3, 700.0, 10.0)


def model() -> MetaModel:
    return MetaModel(start="edf", pool=POLICIES, limits=Limits(period_s=5.0, dwell_s=10.0, rollback_window_s=10.0, settle_s=2.0))


def drive(meta: MetaModel, from_s: float, until_s: float, *, long=None, short=None) -> list:
    said = []
    for step in range(int((until_s - from_s) * 2)):
        now_s = from_s + step / 2
        said += meta.on_short(short_view(now_s, **(short or {})), now_s)
        if now_s % 5 == 0:
            said += meta.on_long(long_view(now_s, **(long or {})), now_s)
    return said


def test_what_was_rolled_back_is_left_alone_for_a_while_and_then_tried_again():
    meta = model()
    drive(meta, 0.0, 6.0, long=UNEVEN)
    assert meta.policy == "wfq"
    said = drive(meta, 6.0, 60.0, long=UNEVEN, short={"violation_rate": 0.95})
    assert [d.source for d in said if d.policy != d.previous] == ["rollback"]
    assert any("left alone" in d.reason for d in said)
    again = drive(meta, 60.0, 130.0, long=UNEVEN)
    assert [d.policy for d in again if d.policy != d.previous] == ["wfq"]


def test_nothing_is_decided_while_no_engine_is_there():
    down = instance(engine=EngineSnapshot(engine="i0", taken_s=0.0, healthy=False, detail="refused"))
    said = drive(model(), 0.0, 40.0, long=UNEVEN, short={"instances": [down], "utilization": {"i0": 0.0}})
    assert {d.policy for d in said} == {"edf"}
    assert any(d.source == "hold" for d in said)


def test_bypass_comes_back_to_the_policy_before_an_unproven_switch():
    meta = model()
    drive(meta, 0.0, 5.5, long=UNEVEN)
    assert meta.policy == "wfq"
    said = drive(meta, 5.5, 30.0, short={"anomalies": ["conservation"]}, long=UNEVEN)
    assert all(d.bypass and d.policy == "fcfs" and d.parameters == {} for d in said if d.sent_s > 6.0)
    after = drive(meta, 30.0, 45.0)
    assert (after[-1].bypass, after[-1].policy) == (False, "edf")


def test_an_operator_ends_a_bypass_and_none_begins_under_one():
    meta = model()
    begun = drive(meta, 0.0, 5.0, short={"anomalies": ["stuck"]})
    assert begun[-1].bypass
    said = drive(meta, 5.0, 20.0, short={"anomalies": ["stuck"], "forced": ["policy"]}, long={"forced": ["policy"]})
    assert not any(d.bypass for d in said)


def test_a_bypass_outlives_a_restart_and_then_clears():
    meta = model()
    (last, *_) = [d for d in drive(meta, 0.0, 5.0, short={"anomalies": ["stuck"]}) if d.bypass]
    again = model()
    again.restore([last], 6.0)
    said = drive(again, 6.0, 30.0)
    assert (said[0].bypass, said[-1].bypass) == (True, False)
    assert again.policy == "edf"


def test_it_says_something_often_enough_to_be_believed_and_no_more():
    said = drive(model(), 0.0, 120.0, short={"ttft_ms": CALM})
    gaps = [later.sent_s - earlier.sent_s for earlier, later in pairwise(said)]
    assert max(gaps) <= 5.5
    assert len(said) <= 60


def test_a_clock_that_goes_back_stops_nothing():
    meta = model()
    drive(meta, 10_000.0, 10_020.0, long=UNEVEN)
    assert meta.policy == "wfq"
    said = drive(meta, 0.0, 60.0, long={"violation_rate": 0.0})
    assert meta.policy == "edf"
    assert said
