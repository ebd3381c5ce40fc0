"""The length bounds' two guarantees: finite-sample validity where errors are exchangeable, few misses on any stretch where they are not."""

import math

import numpy as np
import pytest
from control_kit import completion
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import known

from hmas.agents.statera.conformal import MODELS, LengthCalibrator, ModelLengths
from hmas.agents.statera.risk import DOUBLINGS_MAX, GRACE, LEAST_TOKENS, SLACK, AdaptiveRisk


def misses(epsilon, lengths, prompts=None):
    """Which lengths came out above the bound that was in force, from the first bound on."""
    calibrator, found = LengthCalibrator(epsilon), []
    for number, length in enumerate(lengths):
        prompt = 300 if prompts is None else prompts[number]
        bound = calibrator.add_tokens(prompt)
        if bound is not None:
            found.append(length > 90.0 + bound)
        calibrator.learn(completion(number, float(number), prompt_tokens=prompt, output_tokens=int(length)))
    return np.array(found)


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.2])
def test_at_most_epsilon_of_exchangeable_lengths_miss_from_the_first_bound_on(epsilon):
    """Over many short streams, so that what is tried is the finite-sample claim and not the large window."""
    rng = np.random.default_rng(3)
    first = [misses(epsilon, rng.lognormal(4.5, 0.9, 60).astype(int) + 1) for _ in range(300)]
    rate = np.concatenate(first).mean()
    assert rate <= epsilon + 0.005
    assert rate >= 0.5 * epsilon, "bounds that are far too wide"


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.2])
@given(
    seed=st.integers(0, 1000),
    levels=st.lists(st.tuples(st.integers(10, 150), st.floats(1.0, 9.5), st.floats(0.0, 1.5)), min_size=1, max_size=6),
)
def test_on_any_stretch_misses_are_few_whatever_the_lengths_do(epsilon, seed, levels):
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([np.clip(rng.lognormal(mean, sigma, count), 1, 40_000).astype(int) for count, mean, sigma in levels])
    missed = misses(epsilon, lengths) - epsilon
    walk = np.concatenate([[0.0], np.cumsum(missed)])
    worst = float(np.max(walk - np.minimum.accumulate(walk)))
    assert worst <= 2 * SLACK + GRACE + math.log2(1 + 2 * 40_000 / LEAST_TOKENS) + 1


def test_lengths_that_grow_for_ever_are_followed():
    """No window contains what comes next; without adaptation every single one would be above its bound."""
    missed = misses(0.1, [int(50 * 1.004**step) for step in range(1500)])
    assert missed[200:].mean() <= 0.12


def test_a_long_calm_buys_no_licence():
    risk = AdaptiveRisk(0.1)
    for _ in range(10_000):
        risk.note(missed=False)
    assert risk.excess == -SLACK
    assert risk.level == 0.1


@given(st.lists(st.booleans(), max_size=300), st.floats(0.01, 0.5))
def test_adaptation_only_ever_widens(outcomes, epsilon):
    risk = AdaptiveRisk(epsilon)
    for missed in outcomes:
        risk.note(missed=missed)
        assert 0.0 <= risk.level <= epsilon
        assert -SLACK <= risk.excess <= SLACK + GRACE + DOUBLINGS_MAX
        assert risk.stretched(100.0) >= 100.0
        assert math.isfinite(risk.stretched(100.0))


def test_one_bucket_that_goes_bad_leaves_the_others_alone():
    rng = np.random.default_rng(5)
    calibrator = LengthCalibrator(0.1)
    for number in range(600):
        calibrator.learn(completion(2 * number, 0.0, prompt_tokens=100, output_tokens=int(rng.integers(80, 120))))
        calibrator.learn(
            completion(2 * number + 1, 0.0, prompt_tokens=1000, output_tokens=int(rng.integers(80, 120) * (1 + 9 * (number > 500))))
        )
    assert known(calibrator.add_tokens(100)) <= 30
    assert known(calibrator.add_tokens(1000)) >= 1000 - 90


def test_each_of_several_models_has_bounds_of_its_own():
    """A twelfth of the answers is 2,000 tokens longer than forecast, all of one model: the bounds of all requests would leave them out."""
    lengths = ModelLengths(0.1)
    for number in range(600):
        model, output_tokens = ("long", 2090) if number % 12 == 0 else ("short", 90 + number % 7)
        lengths.learn(completion(number, float(number), model=model, prompt_tokens=300, output_tokens=output_tokens))
    add_tokens = {model: [bound.add_tokens for bound in lengths.bounds() if bound.model == model] for model in ("long", "short", "")}
    assert min(add_tokens["long"]) == 2000.0
    assert max(add_tokens["short"]) < 10.0
    assert add_tokens[""] == [bound.add_tokens for bound in lengths.bounds()][-5:], "those of all come last"
    assert max(add_tokens[""]) < 10.0


def test_models_are_bounded_and_one_alone_needs_no_bounds_of_its_own():
    lengths = ModelLengths(0.1)
    for number in range(100):
        lengths.learn(completion(number, float(number), model="m"))
    assert [bound.model for bound in lengths.bounds()] == [""] * 5
    for number in range(3000):
        lengths.learn(completion(1000 + number, float(number), model=f"m{number // 30}"))
    assert len({bound.model for bound in lengths.bounds()}) == 1 + MODELS


@pytest.mark.parametrize("nothing", [{"output_tokens": 0}, {"predicted_output_tokens": 0.0}, {"sequences": 2}])
def test_a_request_that_shows_no_length_makes_no_model_known(nothing):
    """Requests with a wrong model name end like this, and there may be any number of names."""
    lengths = ModelLengths(0.1)
    lengths.learn(completion(0, 0.0, model="wrong", **nothing))
    for number in range(100):
        lengths.learn(completion(1 + number, 0.0, model="m"))
    assert {bound.model for bound in lengths.bounds()} == {""}, "m is alone"
    for number in range(100):
        lengths.learn(completion(200 + number, 0.0, model="n"))
    before = lengths.bounds()
    assert {bound.model for bound in before} == {"n", ""}
    for number in range(2 * MODELS):
        lengths.learn(completion(400 + number, 0.0, model=f"wrong-{number}", **nothing))
    assert lengths.bounds() == before
