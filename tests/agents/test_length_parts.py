"""Parts of the length model: names of models, words of questions, the base's file, effects, calibration and bounds."""

import json
import math
from functools import lru_cache

import catboost
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.agents.model_store.card import verified
from hmas.agents.perception.lengths.base import FILE, INPUTS, SHIPPED, LengthBase, Stored, load
from hmas.agents.perception.lengths.bounds import LongestAnswers, cap_of
from hmas.agents.perception.lengths.calibration import SCATTER_BOUND, Calibration
from hmas.agents.perception.lengths.demands import COUNTS, DEMAND, TOKENS_PER, UPPER, demanded_tokens
from hmas.agents.perception.lengths.effects import Effects, Level, Membership
from hmas.agents.perception.lengths.names import known_offset, model_key
from hmas.agents.perception.lengths.text import NUMBERS, WORDS, QuestionFeatures, features_of, terms
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.lengths import trees_of
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import LEVELS


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama31_70b", "Llama-3.1-70B", "hf/llama-3.1-70b-instruct-awq"), "llama3170b"),
        (("gpt-4o-2024-08-06", "gpt4o_0806", "openai/gpt-4o"), "gpt4o"),
        (("Mistral-7B-Instruct-v0.2", "mistral_7b_v02"), "mistral7bv02"),
    ],
)
def test_one_model_has_one_key_under_every_name(names, key):
    assert {model_key(name) for name in names} == {key}


def test_different_models_have_different_keys():
    names = ["llama-3-8b", "llama-3-70b", "llama-3.1-8b", "gpt-4", "gpt-4o", "gpt-4-turbo", "qwen2-7b", "qwen2-72b"]
    assert len({model_key(name) for name in names}) == len(names)


@given(st.text(max_size=300))
def test_any_name_has_a_bounded_key(name):
    assert len(model_key(name)) <= 256


def test_what_is_known_of_a_shorter_name_counts_half_and_never_splits_a_number():
    offsets = {"claude35": 0.4, "qwen2": 0.2}
    assert known_offset("claude35", offsets) == (0.4, 1.0)
    assert known_offset("claude35sonnet", offsets) == (0.2, 0.5)
    assert known_offset("qwen25", offsets) == (0.0, 0.0)
    assert known_offset("", offsets) == (0.0, 0.0)


@given(st.text(max_size=3000), st.integers(-5, 10**9), st.integers(-5, 10**9), st.integers(-5, 10**6))
def test_any_prompt_has_finite_features_of_a_bounded_size(text, tokens, chars, turns):
    found = features_of(PromptView(excerpt=text, prompt_tokens=tokens, prompt_chars=chars, turns=turns))
    assert len(found.words) <= WORDS
    assert len(found.numbers) == len(NUMBERS)
    assert all(np.isfinite(found.numbers))


def test_words_are_read_at_both_ends_with_digits_as_zeros():
    found = features_of(PromptView(excerpt="Write 2,000 words" + " extraordinarily" * 3000 + " about C++ in 写 style?"))
    assert found.words[:4] == ["write", "0", "000", "words"]
    assert found.words[-3:] == ["in", "写", "style"]
    assert found.numbers[NUMBERS.index("question_mark")] == 1.0
    assert found.numbers[NUMBERS.index("other_scripts")] == 1.0
    assert features_of(PromptView(excerpt="a 12 b")).words == ["a", "00", "b"] == features_of(PromptView(excerpt="a 12 b é")).words[:3]


def test_a_hidden_text_is_told_from_an_empty_demand():
    hidden = features_of(PromptView(excerpt="", prompt_tokens=100, prompt_chars=400))
    assert hidden.numbers[NUMBERS.index("hidden")] == 1.0
    assert hidden.words == []


PIECES = ["at least", "no more than", "2", "1,500", "three", "ten", "-", " ", " ", " ", "word", "words", "pages", "sentence", "a fox", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_demands_need_no_more_than_what_stands_before_a_unit(text):
    """The quick reading finds what the pattern finds in the whole text."""
    largest = 0.0
    for quantifier, count, unit in DEMAND.findall(text):
        number = COUNTS.get(count) or int(count.replace(",", ""))
        share = 0.8 if quantifier in UPPER else 1.0
        largest = max(largest, number * TOKENS_PER[unit] * share)
    assert demanded_tokens(text) == pytest.approx(min(largest, 32_768.0))


def test_the_shipped_base_is_what_its_card_says():
    card = verified(SHIPPED)
    assert card.format == "lengths"
    assert not [name for name in card.details.get("trained_on", ()) if name.startswith("alpaca_eval")]
    assert not [name for name in load(SHIPPED).offsets if "alpaca" in name]


def test_the_trees_say_what_the_library_says_and_levels_never_cross():
    rng = np.random.default_rng(2)
    rows = rng.normal(0.0, 1.0, (400, len(INPUTS))).astype(np.float32)
    booster = catboost.CatBoostRegressor(
        loss_function="MultiQuantile:alpha=" + ",".join(map(str, LEVELS)), iterations=30, depth=4, verbose=False, allow_writing_files=False
    )
    booster.fit(rows, rows[:, 0] + rng.normal(0.0, 1.0, 400))
    document = json.loads((SHIPPED / FILE).read_text()) | {
        "trees": trees_of(booster, 5),
        "widening": 1.0,
        "ranges": [(-9.0, 9.0)] * len(INPUTS),
        "terms": [],
        "weights": [],
        "intercept": 0.0,
    }
    base = LengthBase(msgspec.convert(document, Stored))
    rows[:, -1] = 0.0
    for row in rows[:50]:
        found = base.tell(QuestionFeatures([], row[:-1].tolist()))
        assert found.log_lengths == sorted(found.log_lengths)
        assert found.log_lengths == pytest.approx(sorted(booster.predict(row)), abs=5e-3)


def test_a_score_adds_up_the_weights_of_known_terms():
    document = json.loads((SHIPPED / FILE).read_text()) | {"terms": ["write", "a poem"], "weights": [0.5, 1.5], "intercept": 5.0}
    base = LengthBase(msgspec.convert(document, Stored))
    assert base.score(["write", "a", "poem", "write"]) == pytest.approx(5.0 + 2.0 / math.sqrt(2.0))
    assert base.score(["nothing", "known"]) == 5.0
    assert terms(["write", "a", "write", "a"]) == ["write", "a", "write a", "a write"]


@given(st.text(max_size=200), st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_any_request_gets_finite_ascending_quantiles_that_training_has_shown(text, tokens, chars):
    found = load_once().tell_of(PromptView(excerpt=text, question_tokens=tokens, question_chars=chars)).log_lengths
    assert found == sorted(found)
    assert all(-3.0 < value < math.log(100_000.0) for value in found)


@lru_cache
def load_once() -> LengthBase:
    return load(SHIPPED)


def test_what_lies_outside_the_ranges_of_training_is_counted_by_its_name():
    base = load(SHIPPED)
    base.tell_of(PromptView(excerpt="hello", question_tokens=10**9, question_chars=10**9))
    assert base.ranges.out_of_range["log_tokens"] == 1
    assert "hidden" not in base.ranges.out_of_range


def test_a_base_that_cannot_be_used_says_why(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)
    document = json.loads((SHIPPED / FILE).read_text())
    for change, words in [
        ({"levels": [0.5]}, "other quantile levels"),
        ({"format": 1}, "format 1, needed 2"),
        ({"trees": document["trees"] | {"leaves": ""}}, "are needed"),
        ({"weights": document["weights"][:3]}, "needed: one each"),
        ({"terms": 3}, "cannot be read"),
    ]:
        (tmp_path / FILE).write_text(json.dumps(document | change))
        with pytest.raises(ModelError, match=words):
            load(tmp_path)


LEVELS_OF = (Level("first", 0.2, 0.001), Level("second", 0.1, 0.001), Level("hidden", 0.0, 0.001, of_spread=0.5))


def member(*groups, start=(0.0, 0.2)) -> Membership:
    return Membership(groups, 0.4, 0.2, start)


def test_crossed_effects_are_told_apart():
    """Two models and two tenants, all four pairs: each effect is found though no pair shows one alone."""
    rng = np.random.default_rng(4)
    effects = Effects(LEVELS_OF)
    model, tenant = {"a": 0.6, "b": -0.6}, {"x": 0.3, "y": -0.3}
    for _ in range(3000):
        one, other = rng.choice(["a", "b"]), rng.choice(["x", "y"])
        request = member(("m", one), ("t", other), None)
        mean, variance = effects.sum(request)
        effects.learn(request, model[one] + tenant[other] + rng.normal(0, 0.4) - mean, variance + request.noise, 1.0)
    for one, other in [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]:
        assert effects.sum(member(("m", one), ("t", other), None))[0] == pytest.approx(model[one] + tenant[other], abs=0.15)


def test_doubt_shrinks_with_news_and_never_below_the_floor():
    effects = Effects(LEVELS_OF)
    request = member("m", "t", "p", start=(0.5, 0.06))
    assert effects.sum(request) == pytest.approx((0.5, 0.06 + 0.1 + 0.5 * 0.4))
    doubts = []
    for _ in range(500):
        mean, variance = effects.sum(request)
        doubts.append(variance)
        effects.learn(request, 1.0 - mean, variance + request.noise, 1.0)
    assert doubts == sorted(doubts, reverse=True)
    assert doubts[-1] == pytest.approx(3 * 0.001, rel=0.5)
    assert effects.sum(request)[0] == pytest.approx(1.0, abs=0.05)


def test_the_group_without_news_for_longest_goes_first():
    effects = Effects(LEVELS_OF[:1], limit=2)
    for name in ("a", "b", "a", "c"):
        effects.learn(Membership((name,), 0.1, 0.1, (0.0, 0.1)), 0.5, 0.2, 1.0)
    assert effects.count("b") == 0
    assert effects.count("a") == 2
    assert len(effects) == 2


def test_levels_move_until_they_cover():
    rng = np.random.default_rng(9)
    calibration = Calibration()
    stated = [0.0] * len(LEVELS)
    for _ in range(20_000):
        drawn = rng.normal()
        now = [value + move for value, move in zip(stated, calibration.correction(("all",)), strict=True)]
        calibration.learn(("all",), [float(drawn <= value) for value in now], 1.0)
    expected = [-1.28, -0.67, 0.0, 0.67, 1.28, 1.645, 2.33]
    assert calibration.correction(("all",)) == pytest.approx(expected, abs=0.3)


def test_groups_add_up_and_are_bounded():
    calibration = Calibration(limit=3)
    for number in range(10):
        calibration.learn((f"g{number}",), [0.0] * len(LEVELS), 1.0)
    assert len(calibration) == 3
    alone = calibration.correction(("g9",))
    assert calibration.correction(("g9", "g8")) == pytest.approx([2 * value for value in alone])
    assert calibration.correction(("strange",)) == [0.0] * len(LEVELS)


def test_groups_scatter_as_they_have_scattered():
    rng = np.random.default_rng(3)
    calibration = Calibration()
    for _ in range(3000):
        for name, deviation in (("wild", 2.0), ("even", 0.5)):
            groups = (name, "all")
            calibration.learn(groups, LEVELS, float(rng.normal(0.0, deviation)) ** 2 / calibration.scatter(groups))
    assert calibration.scatter(("wild", "all")) == pytest.approx(4.0, rel=0.35)
    assert calibration.scatter(("even", "all")) == pytest.approx(0.25, rel=0.35)
    assert calibration.scatter(("strange",)) == 1.0


def test_what_is_known_of_scatter_is_bounded_in_size():
    calibration = Calibration()
    for _ in range(2000):
        calibration.learn(("g",), LEVELS, 1e9)
    assert calibration.scatter(("g",)) == pytest.approx(math.exp(SCATTER_BOUND))


@pytest.mark.parametrize(
    ("prompt", "context", "cap", "tokens"),
    [(9000, 8192, 0, 1024), (8620, 8192, 6000, 1024), (6000, 8192, 0, 2192), (6000, 8192, 300, 300), (9000, 4, 0, 1)],
)
def test_a_full_context_leaves_an_eighth_of_it_to_the_answer(prompt: int, context: int, cap: int, tokens: int):
    view = PromptView(excerpt="", prompt_tokens=prompt, context_tokens=context, max_output_tokens=cap)
    assert cap_of(view) == pytest.approx(math.log(tokens))


def test_no_answer_is_expected_beyond_twice_the_longest_and_a_longer_one_counts_at_once():
    longest = LongestAnswers(20_000.0)
    groups = (("m", "sim"), ("n", "t"))
    assert longest.bound(groups) == pytest.approx(math.log(20_000.0))
    bounds = []
    for _ in range(1000):
        longest.learn(groups, math.log(300.0))
        bounds.append(longest.bound(groups))
    assert bounds == sorted(bounds, reverse=True)
    assert 600.0 <= math.exp(bounds[-1]) < 800.0
    assert longest.bound((("m", "sim"), ("n", "another"))) == pytest.approx(math.log(20_000.0))
    longest.learn(groups, math.log(50_000.0))
    assert longest.bound(groups) == pytest.approx(math.log(100_000.0))


def test_answers_that_a_cap_has_cut_off_are_no_evidence_that_none_is_longer():
    longest = LongestAnswers(20_000.0)
    groups = (("m", "sim"), ("n", "t"))
    for _ in range(1000):
        longest.learn(groups, math.log(8.0), censored=True)
    assert (longest.bound(groups), len(longest)) == (pytest.approx(math.log(20_000.0)), 0)
    for _ in range(1000):
        longest.learn(groups, math.log(300.0))
    longest.learn(groups, math.log(4000.0), censored=True)
    assert longest.bound(groups) >= math.log(8000.0), "there are answers of 4,000 tokens at least"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("no demand here in 1999", 0),
        ("Write an article of 1,500 words", 2025),
        ("no shorter than 2000 words", 2700),
        ("in less than 100 words", 108),
        ("Answer in two sentences.", 50),
        ("a 5-page report, at least 3 paragraphs", 3250),
        ("write 9999999 words", 32_768),
    ],
)
def test_demands_are_read(text, tokens):
    assert demanded_tokens(text.lower()) == pytest.approx(tokens)
