"""qos: sketches keep their stated error on any distribution, merged or not, in any order."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_kit import known

from hmas.agents.qos.counters import PaneRing
from hmas.agents.qos.sketch import ALPHA, KEPT, HeavyHitters, LogBuckets, merged
from hmas.controller.core.statistics.quantiles import percentile

LOWEST, HIGHEST = 0.01, 1e7
BUCKETS = LogBuckets(LOWEST, HIGHEST)
QS = (0.0, 1.0, 5.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)
ROUNDING = 1e-9

values_st = st.lists(st.one_of(st.floats(0.0, HIGHEST), st.floats(LOWEST, 1.0), st.integers(0, 3).map(float)), min_size=1, max_size=300)
nasty = {
    "one value": np.full(1000, 17.3),
    "two far apart": np.array([LOWEST] * 500 + [HIGHEST] * 500),
    "pareto": 1.0 + np.random.default_rng(1).pareto(0.5, 20_000),
    "lognormal": np.exp(np.random.default_rng(2).normal(3.0, 3.0, 20_000)),
    "powers of gamma": LOWEST * ((1 + ALPHA) / (1 - ALPHA)) ** np.arange(1000),
    "bimodal": np.concatenate([np.random.default_rng(3).uniform(1, 2, 990), np.random.default_rng(4).uniform(5e4, 6e4, 10)]),
    "zeros and a giant": np.array([0.0] * 99 + [9e6]),
}


def counts_of(values) -> np.ndarray:
    return np.bincount([BUCKETS.index(float(v)) for v in values], minlength=BUCKETS.size)


def hold_their_error(values) -> None:
    ordered = sorted(min(HIGHEST, float(v)) for v in values)
    for q, said in zip(QS, BUCKETS.percentiles(counts_of(values), QS), strict=True):
        true = percentile(ordered, q)
        assert abs(said - true) <= ALPHA * true * (1 + ROUNDING) + LOWEST, (q, true, said)


@given(values=values_st)
@example(values=[LOWEST])
@example(values=[HIGHEST])
def test_quantiles_keep_their_relative_error(values):
    hold_their_error(values)


@pytest.mark.parametrize("values", nasty.values(), ids=nasty.keys())
def test_quantiles_keep_it_on_nasty_distributions(values):
    hold_their_error(values)


@given(values=values_st, cut=st.integers(0, 300), seed=st.integers(0, 99))
def test_merged_in_any_parts_and_order_they_are_the_same(values, cut, seed):
    shuffled = np.random.default_rng(seed).permutation(values)
    assert (counts_of(values) == counts_of(shuffled[:cut]) + counts_of(shuffled[cut:])).all()


@given(values=values_st)
def test_mean_and_variation_keep_their_error(values):
    true = np.array(values)
    # What is told from 0 only from LOWEST on is off by that much.
    mean, cv = true.mean(), true.std() / true.mean() if true.mean() > 0 else 0.0
    counts = counts_of(values)
    assert abs(BUCKETS.mean(counts) - mean) <= ALPHA * mean * (1 + ROUNDING) + LOWEST
    if true.min() >= LOWEST:
        assert abs(BUCKETS.variation(counts) - cv) <= ALPHA * (math.sqrt(1 + cv * cv) + cv) / (1 - ALPHA) + 1e-6
        assert abs(BUCKETS.log_mean(counts) - np.log(true).mean()) <= ALPHA / (1 - ALPHA) + ROUNDING


@pytest.mark.parametrize("value", [math.nan, -1.0, -math.inf, 0.0, LOWEST / 2])
def test_what_is_no_value_counts_as_nought(value):
    assert BUCKETS.index(value) == 0


@pytest.mark.parametrize("value", [HIGHEST * 2, 1e300, math.inf])
def test_what_is_beyond_the_range_reads_as_its_end(value):
    counts = counts_of([value])
    assert BUCKETS.percentiles(counts, [50])[0] == pytest.approx(HIGHEST, rel=2.1 * ALPHA)


@given(values=st.lists(st.floats(1.0, 1e6), min_size=1, max_size=100), border=st.floats(1.0, 1e6))
def test_a_share_above_a_border_errs_only_by_what_lies_at_it(values, border):
    near = sum(border / 1.021 <= v <= border * 1.021 for v in values) / len(values)
    above = sum(v > border for v in values) / len(values)
    assert abs(BUCKETS.share_above(counts_of(values), border) - above) <= near + ROUNDING


def summary(names) -> HeavyHitters:
    made = HeavyHitters()
    for name in names:
        made.add(str(name), 10, 5)
    return made


def keeps_its_word(made: HeavyHitters, names) -> None:
    true = Counter(map(str, names))
    assert made.total == len(names)
    assert made.error <= len(names) / (KEPT + 1)
    assert len(made.held) <= 2 * KEPT
    for name, number in true.items():
        held = made.held.get(name)
        assert number - made.error <= (held.count if held else 0) <= number


@given(
    seed=st.integers(0, 1000), kinds=st.integers(1, 2000), number=st.integers(1, 3000), skew=st.floats(1.01, 3.0), parts=st.integers(1, 5)
)
def test_heavy_hitters_keep_their_error_merged_or_not(seed, kinds, number, skew, parts):
    rng = np.random.default_rng(seed)
    names = (rng.zipf(skew, number) % kinds).tolist()
    keeps_its_word(summary(names), names)
    keeps_its_word(merged(summary(names[part::parts]) for part in range(parts)), names)


def test_few_names_are_counted_exactly():
    names = list(range(2 * KEPT)) * 7
    made = summary(names)
    assert made.error == 0
    assert {share.count for share in made.held.values()} == {7}
    assert {(share.asked, share.served) for share in made.held.values()} == {(70, 35)}


def test_a_heavy_name_is_not_missed_among_many_that_come_once():
    names = [f"once-{n}" for n in range(5000)]
    names[::20] = ["heavy"] * 250
    assert summary(names).held["heavy"].count >= 250 - 5000 / (KEPT + 1)


@given(times=st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_a_ring_holds_what_lies_in_its_window_in_whatever_order_it_came(times):
    ring = PaneRing(10.0, 5, 2)
    for at_s in times:
        row = ring.row(at_s)
        if row >= 0:
            ring.cells[row] += 1
    inside = [t for t in times if ring.number(t) >= ring.first]
    assert ring.total().tolist() == [len(inside), 0]
    newest = max(times)
    assert all(t >= ring.start_s for t in inside)
    assert 10.0 - ROUNDING <= newest - ring.start_s <= 12.0 + ROUNDING
    numbers = range(ring.first, known(ring.head) + 1)
    for number in numbers:
        assert ring.between(number, number)[0] == sum(ring.number(t) == number for t in inside)
    assert ring.columns(0, 0)[:, 0].tolist() == [sum(ring.number(t) == n for t in inside) for n in numbers]


def test_a_ring_that_is_left_alone_runs_empty():
    ring = PaneRing(10.0, 5, 1)
    ring.cells[ring.row(0.0)] += 3
    ring.move(1e9)
    assert ring.total()[0] == 0
    ring.cells[ring.row(1e9)] += 1
    ring.clear()
    assert ring.total()[0] == 0
    assert ring.head is None
