"""Inputs outside of what a model was trained on: cut to its ranges, counted, reported."""

import math

import numpy as np
import pytest

from hmas.agents.model_store.card import ModelCard
from hmas.agents.model_store.ranges import RangeCounter, counter_of, figures_of, ranges_of
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.onnx_reader import open_reader
from hmas.agents.perception.readers import SHIPPED_TAGGER
from hmas.agents.perception.training.data import view_of_prompt
from hmas.controller.core.client_bodies import EXCHANGES, Shape
from hmas.controller.core.messages import RequestNotice


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
    missing = [[math.nan, math.nan], [3.0, math.nan], [1.0, math.nan]]
    assert ranges_of(("a", "b"), missing) == {"a": (1.0, 3.0), "b": (0.0, 0.0)}


def test_many_rows_are_cut_at_once_and_an_input_counts_once():
    counter = RangeCounter({"size": (0.0, 1.0), "load": (2.0, 4.0)})
    rows = np.array([[0.5, 3.0], [7.0, math.nan], [math.inf, 1.0], [-1.0, 9.0]], np.float32)
    assert counter.within(rows) == pytest.approx(np.array([[0.5, 3.0], [1.0, math.nan], [1.0, 2.0], [0.0, 4.0]]), nan_ok=True)
    assert counter.out_of_range == {}, "cutting counts nothing"
    # Two inputs of two rows each.
    counter.count(rows.reshape(2, 2, 2))
    assert counter.out_of_range == {"size": 2, "load": 1}
    counter.count(rows[:1, None])
    assert counter.out_of_range == {"size": 2, "load": 1}


def test_a_card_states_ranges_for_all_inputs_or_none():
    def of(stated):
        return counter_of(ModelCard(kind="prediction", details=stated), ("a", "b"))

    assert of({}) is None
    assert of({"ranges": {"a": [0, 1], "b": [2, 2]}}).bounds == {"a": (0.0, 1.0), "b": (2.0, 2.0)}
    for wrong in ([1, 2], {"a": [0, 1]}, {"b": [0, 1], "a": [0, 1]}):
        with pytest.raises(ValueError, match="must name a, b, in this order"):
            of({"ranges": wrong})
    for other in (3, ["x", 1], [1, 0]):
        with pytest.raises(ValueError, match=r"ranges.*allowed: two numbers"):
            of({"ranges": {"a": [0, 1], "b": other}})


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
    model = PerceptionModel(min_confidence=0.5, reader=open_reader(SHIPPED_TAGGER))
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
