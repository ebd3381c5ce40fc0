"""Inputs outside of what a model was trained on: cut to its ranges, counted, reported."""

import math

import pytest

from agents.perception.ranges import RangeCounter, figures_of, ranges_of


def test_inputs_are_cut_to_the_ranges_and_counted():
    counter = RangeCounter({"size": (0.0, 1.0), "always": (2.0, 2.0)})
    assert counter.clip([0.5, 2.0]) == [0.5, 2.0]
    assert counter.out_of_range == {}
    assert counter.clip([7.0, 3.0]) == [1.0, 2.0]
    assert counter.clip([-1.0, 2.0]) == [0.0, 2.0]
    assert counter.clip([math.nan, 2.0]) == [0.0, 2.0]
    assert counter.clip([math.inf, 2.0]) == [1.0, 2.0]
    assert counter.out_of_range == {"size": 4, "always": 1}
    assert figures_of("reader", counter) == {"out_of_range/reader/size": 4.0, "out_of_range/reader/always": 1.0}
    assert figures_of("reader", None) == {}


def test_ranges_are_those_of_the_inputs():
    assert ranges_of(("a", "b"), [[1.0, 5.0], [3.0, 5.0], [2.0, 5.0]]) == {"a": (1.0, 3.0), "b": (5.0, 5.0)}


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (math.nan, 1.0), (1.0,)])
def test_a_range_that_is_none_is_refused(bounds):
    with pytest.raises(ValueError, match=r"ranges\.size is .*; allowed: two numbers"):
        RangeCounter({"size": bounds})
