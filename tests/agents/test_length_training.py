"""Training the base of output lengths: verbosity is found where models answered the same prompts, and a seed decides everything."""

import math

import numpy as np
import pytest

from hmas.agents.perception.training.answers import Corpus, LengthRow, corpus_of
from hmas.agents.perception.training.lengths import Plan, fit, fit_checked
from hmas.controller.core.errors import ModelError


def corpus(factors: dict[str, float], *, shared: bool) -> Corpus:
    """Models that differ by a factor: on the same prompts, or each on prompts of its own that only it answered."""
    rng = np.random.default_rng(2)
    return corpus_of(
        [
            LengthRow(
                "made:up" if shared else f"of-{model}",
                f"Tell me {number} things of the sea." if shared else f"Tell {model} me {number} things of the sea.",
                model,
                round(200 * factor * rng.lognormal(0.0, 0.2)),
            )
            for model, factor in factors.items()
            for number in range(60)
        ]
    )


def test_verbosity_is_what_models_differ_by_on_the_same_prompts():
    offsets = fit(corpus({"terse": 0.5, "plain": 1.0, "wordy": 2.0}, shared=True), Plan(trees=5))["offsets"]
    assert offsets["wordy"] - offsets["terse"] == pytest.approx(math.log(4.0), abs=0.3)
    assert abs(offsets["plain"]) < 0.1


def test_a_model_that_alone_answered_its_prompts_is_not_known_to_be_terse_or_wordy():
    """The prompts may as well be what makes its answers long: other models' answers to them are foretold as long."""
    assert fit(corpus({"terse": 0.1, "wordy": 3.0}, shared=False), Plan(trees=5))["offsets"] == {}


def test_the_same_seed_gives_the_same_trees():
    small = corpus({"one": 1.0, "two": 1.0}, shared=True)
    one, other = (fit_checked(small, Plan(trees=20, widening=widening), lambda _: None) for widening in (0.0, 1.5))
    assert one["trees"] == other["trees"]
    assert other["widening"] == 1.5


def test_too_little_is_refused():
    with pytest.raises(ModelError, match="2 answers to learn from; needed: 40"):
        fit_checked(corpus_of([LengthRow("d", f"p{number}", "m", 3) for number in range(2)]), Plan(), lambda _: None)
