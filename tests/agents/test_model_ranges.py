"""Inputs outside of what a model was trained on: cut to its ranges, counted, reported."""

import math

import pytest

from agents.perception.model import PerceptionModel
from agents.perception.onnx_reader import open_reader
from agents.perception.ranges import RangeCounter, figures_of, ranges_of
from agents.perception.readers import SHIPPED_TAGGER
from agents.perception.training.shapes import view_of_prompt
from controller.core.client_bodies import EXCHANGES, Shape
from controller.core.messages import RequestNotice


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


def test_every_shape_of_request_is_within_the_shipped_readers_training():
    reader = open_reader(SHIPPED_TAGGER)
    talk = [("What is a llama?", "An animal of the Andes."), ("thanks", "You are welcome.")]
    views = [view_of_prompt("Write a poem about the sea.", shape, exchanges=talk, holdout=True) for shape in Shape]
    reader.read(views)
    assert max(EXCHANGES.values()) == 15
    assert reader.ranges.out_of_range == {}


def test_what_lies_outside_is_reported():
    model = PerceptionModel(min_confidence=0.5, slo_scale=1.0, reader=open_reader(SHIPPED_TAGGER))
    huge = RequestNotice(
        request_id="r",
        sent_s=1.0,
        tenant="t",
        model="m",
        prompt_tokens=10**7,
        question_tokens=10**7,
        question_chars=10**8,
        turns=10**5,
        excerpt="hi",
    )
    model.perceive(huge, 1.0)
    figures = model.figures()
    assert figures["out_of_range/reader/log_turns"] == 1.0
    assert figures["out_of_range/reader/log_chars"] == 1.0
    assert "learnt" in figures
