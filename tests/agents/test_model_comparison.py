"""The test that calls one model better: it finds what is better, and errs as rarely as it promises however often it is asked."""

import math

import numpy as np
import pytest

from hmas.agents.model_store.comparison import ALPHA, Comparison


def losses(rng: np.random.Generator, count: int, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Two models' losses on the same requests: heavy-tailed, alike in what is hard, the second lower by `1 - ratio`."""
    hard = rng.lognormal(0.0, 1.0, count)
    return hard * rng.lognormal(0.0, 0.4, count), ratio * hard * rng.lognormal(0.0, 0.4, count)


def ever_better(old: np.ndarray, new: np.ndarray, margin: float) -> bool:
    comparison = Comparison(margin=margin, least=100, burn_in=0)
    for one, other in zip(old.tolist(), new.tolist(), strict=True):
        comparison.add(one, other)
        if comparison.verdict().better:
            return True
    return False


def test_a_model_that_is_better_by_a_tenth_is_found():
    rng = np.random.default_rng(1)
    assert sum(ever_better(*losses(rng, 5000, 0.9), margin=0.02) for _ in range(20)) >= 18


@pytest.mark.parametrize("ratio", [1.0, 1.1])
def test_asked_after_every_completion_it_is_wrong_as_rarely_as_promised(ratio):
    rng = np.random.default_rng(2)
    wrong = sum(ever_better(*losses(rng, 2000, ratio), margin=0.0) for _ in range(200))
    # The promise is 1 in 100; 8 of 200 would happen by chance once in 1,700 times.
    assert wrong < 8
    assert pytest.approx(0.01) == ALPHA


def test_better_by_less_than_the_margin_is_not_better():
    rng = np.random.default_rng(3)
    assert sum(ever_better(*losses(rng, 2000, 0.98), margin=0.05) for _ in range(50)) <= 2


def test_the_first_pairs_are_not_counted_and_few_are_not_enough():
    comparison = Comparison(margin=0.0, least=50, burn_in=10)
    for number in range(59):
        comparison.add(1.0 + number % 3, 0.1)
    verdict = comparison.verdict()
    assert (verdict.pairs, verdict.better) == (49, False)
    assert verdict.evidence > math.log(1 / ALPHA)
    comparison.add(1.0, 0.1)
    assert comparison.verdict().better
    assert comparison.verdict().gain == pytest.approx(0.95, abs=0.01)


def test_models_without_any_loss_are_alike():
    comparison = Comparison(margin=0.02, least=1, burn_in=0)
    for _ in range(100):
        comparison.add(0.0, 0.0)
    assert comparison.verdict().gain == 0.0
    assert not comparison.verdict().better
