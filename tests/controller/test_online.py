"""What follows a stream in bounded memory: cumulative traces, tracked quantiles, recent ids."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.core.statistics.cumulative_trace import BACK_S, READINGS, CumulativeTrace
from hmas.controller.core.statistics.quantiles import tracked
from hmas.controller.core.statistics.recent_ids import RecentIds


def test_mean_level_of_a_span():
    trace = CumulativeTrace()
    assert trace.mean(0.0, 1.0) is None
    for at_s, level in [(10.0, 2), (11.0, 6), (12.0, 0)]:
        trace.hold(at_s, level)
    trace.hold(11.5, 99)
    assert trace.mean(10.0, 12.0) == pytest.approx(4.0)
    assert trace.mean(10.5, 11.5) == pytest.approx(4.0)
    assert trace.mean(11.0, 14.0) == pytest.approx(2.0), "a level holds beyond the newest reading"
    assert trace.mean(9.0, 11.0) is None
    assert trace.mean(11.0, 11.0) is None


@given(readings=st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 50)), min_size=2, max_size=50), data=st.data())
def test_the_mean_is_that_of_the_integral(readings, data):
    trace, now_s, steps = CumulativeTrace(), 0.0, []
    for gap_s, value in readings:
        trace.hold(now_s, value)
        steps.append((now_s, value))
        now_s += gap_s
    start_s = data.draw(st.floats(0, now_s))
    end_s = data.draw(st.floats(start_s, now_s + 5.0))
    ends = [at_s for at_s, _ in steps[1:]] + [math.inf]
    area = sum(max(0.0, min(end_s, until) - max(start_s, at_s)) * value for (at_s, value), until in zip(steps, ends, strict=True))
    if end_s - start_s > 1e-3:
        assert trace.mean(start_s, end_s) == pytest.approx(area / (end_s - start_s), abs=1e-6)


def test_counters_are_read_between_readings_and_over_restarts():
    trace = CumulativeTrace()
    for at_s, total in [(0.0, 100), (1.0, 200), (0.5, 999), (1.5, -1), (2.0, 50)]:
        trace.count(at_s, total)
    assert trace.grown(0.0, 1.0) == pytest.approx(100.0)
    assert trace.grown(0.25, 0.75) == pytest.approx(50.0)
    assert trace.grown(1.0, 2.0) == pytest.approx(50.0), "a counter that fell belongs to a new process"
    assert trace.mean(0.0, 2.0) == pytest.approx(75.0)
    assert trace.grown(-1.0, 1.0) is None
    assert trace.grown(1.0, 3.0) is None, "nothing is known of a counter beyond its newest reading"


@pytest.mark.parametrize("kind", ["hold", "count"])
def test_a_clock_that_went_far_back_starts_the_trace_again(kind):
    trace = CumulativeTrace()
    for at_s in (1000.0, 1001.0, 1000.5, 1001.0 - BACK_S, 971.5, 972.0):
        getattr(trace, kind)(at_s, at_s)
    assert trace.grown(1000.0, 1000.1) is None or kind == "hold"
    assert trace.grown(971.0, 971.2) == pytest.approx(0.2 * 971.0 if kind == "hold" else 0.2)


def test_a_trace_is_bounded():
    trace = CumulativeTrace()
    for number in range(2 * READINGS + 2):
        trace.hold(float(number), 1)
    assert trace.mean(0.0, 5.0) is None
    assert trace.mean(READINGS + 5.0, READINGS + 50.0) == pytest.approx(1.0)


@given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=300), st.sampled_from([0.05, 0.5, 0.9]), st.floats(0.01, 0.5))
def test_the_share_below_a_tracked_quantile_comes_to_its_level(values, level, step):
    quantile, below = values[0], 0
    for value in values:
        below += value <= quantile
        quantile = tracked(quantile, level, step, 1.0 if value <= quantile else 0.0)
    spread = max(values) - min(values)
    assert abs(below - level * len(values)) <= (spread + step) / step + 1e-6


@given(ids=st.lists(st.integers(0, 30).map(str), max_size=200))
def test_ids_are_known_as_long_as_the_bound_allows(ids):
    seen = RecentIds(10)
    model: list[str] = []
    for identity in ids:
        assert seen.add(identity) == (identity not in model)
        if identity not in model:
            model = [*model, identity][-10:]
        assert len(seen) <= 10
        assert identity in seen
    for identity in ids[-5:]:
        assert seen.discard(identity) == (identity in model)
        model = [one for one in model if one != identity]
    assert len(seen) == len(model)
