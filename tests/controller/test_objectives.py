import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.core.objectives import (
    goodput_rate,
    goodput_rps,
    jain,
    mismatch,
    service_gain,
    slo_met,
    slo_ttlt_ms,
    ttlt_ms,
)
from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.core.types import Slo

SLO = Slo(ttft_ms=1000, tpot_ms=50)


@pytest.mark.parametrize(
    ("ttft", "tpot", "met"),
    [
        (1000, 50, True),
        (1000.1, 50, False),
        (1000, 50.1, False),
        (0, 0, True),
        (200, -1, True),
        (-1, 10, False),
        (-1, -1, False),
    ],
)
def test_both_targets_decide(ttft, tpot, met):
    assert slo_met(ttft, tpot, SLO) is met


def test_goodput_is_a_share_and_a_rate():
    assert goodput_rate(30, 40) == 0.75
    assert goodput_rate(0, 0) == 0.0
    assert goodput_rps(30, 20.0) == 1.5
    assert goodput_rps(3, 0.0) == 0.0


def test_gain_of_a_request_in_time_is_its_tokens():
    assert service_gain(100, 50, 500, 20, SLO) == 100 + 2 * 50


def test_gain_falls_with_the_ratio_of_target_to_time():
    taken = ttlt_ms(4000, 100, 50)
    assert taken == 9000
    assert slo_ttlt_ms(SLO, 50) == 3500
    assert service_gain(100, 50, 4000, 100, SLO) == pytest.approx(200 * 3500 / 9000)


def test_no_token_no_gain_and_one_token_has_no_tpot():
    assert service_gain(100, 0, -1, -1, SLO) == 0.0
    assert service_gain(100, 1, 500, -1, SLO) == 102
    assert service_gain(100, 1, 0, -1, SLO) == 102


def test_mismatch_counts_only_oversubscription():
    assert mismatch(150, 100) == pytest.approx(0.5)
    assert mismatch(50, 100) == 0.0
    assert mismatch(0, 0) == 0.0
    assert math.isfinite(mismatch(10, 0))


def test_jain_knows_its_ends():
    assert jain([]) == jain([5]) == jain([0, 0]) == 1.0
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([2, 2, 2]) == pytest.approx(1.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentile_is_numpys_linear_method(values, q):
    ordered = sorted(values)
    mine = percentile(ordered, q)
    assert ordered[0] <= mine <= ordered[-1]
    assert mine == pytest.approx(float(np.percentile(values, q, method="linear")), abs=1e-6, rel=1e-9)


def test_percentile_of_nothing_is_zero():
    assert percentile([], 50) == 0.0


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=20))
def test_jain_stays_between_one_over_n_and_one(shares):
    assert 1 / len(shares) - 1e-9 <= jain(shares) <= 1.0
