"""Training the base of output lengths: what left-out collections show of models without an offset, and that a seed decides everything."""

import numpy as np

from agents.perception.training.lengths.corpus import Corpus, corpus_of
from agents.perception.training.lengths.data import LengthRow
from agents.perception.training.lengths.fitting import Plan, train


def corpus(factors: dict[str, float]) -> Corpus:
    """Collections whose prompts are alike and whose answers differ by a factor, each of models of its own."""
    rng = np.random.default_rng(2)
    return corpus_of(
        [
            LengthRow(
                name, f"Tell me {number} things of the sea, {name}.", f"{name}-{model}", round(200 * factor * rng.lognormal(0.0, 0.2))
            )
            for name, factor in factors.items()
            for number in range(60)
            for model in range(2)
        ]
    )


def found(factors: dict[str, float]) -> float:
    return train(corpus(factors), Plan(trees=60, widening=1.0), lambda _: None)["newcomers"]


def test_a_collection_longer_than_the_others_is_what_they_are_short_of():
    """Three votes: the long one is four times what the others tell; each of these is told too much by a share of it."""
    even = found({"one": 1.0, "two": 1.0, "three": 1.0})
    assert abs(even) < 0.15
    assert found({"one": 1.0, "two": 1.0, "three": 8.0}) > even + 0.1


def test_collections_that_are_not_as_served_have_no_vote():
    assert found({"one": 1.0, "teknium1/GPTeacher": 9.0}) < 0.0


def test_the_same_seed_gives_the_same_trees_whatever_ran_before():
    small = corpus({"one": 1.0, "two": 1.0})
    one = train(small, Plan(trees=20, widening=1.0), lambda _: None)
    other = train(small, Plan(trees=20, widening=1.0, newcomers=0.0), lambda _: None)
    assert one["trees"] == other["trees"]
    assert other["newcomers"] == 0.0
