"""Parts of the length model: names of models, words of prompts, the net's file, effects and calibration."""

import base64
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.models.card import verified
from agents.perception import length_demands
from agents.perception.input_ranges import InputRanges
from agents.perception.length_calibration import Calibration
from agents.perception.length_effects import Effects, Level, Membership
from agents.perception.length_names import known_offset, model_key
from agents.perception.length_net import FILE, SHIPPED, load, spread
from agents.perception.length_scales import BOUND, Scales
from agents.perception.length_slopes import REACH, USUAL, VARIANCE, Slopes, distance
from agents.perception.length_text import DENSE, WORDS, features_of
from agents.perception.reading import PromptView
from controller.core.errors import ModelError
from controller.core.lengths import LEVELS, MEDIAN


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
    assert len(found.dense) == len(DENSE)
    assert all(np.isfinite(found.dense))


def test_words_are_read_at_both_ends_with_digits_as_zeros():
    found = features_of(PromptView(excerpt="Write 2,000 words" + " extraordinarily" * 3000 + " about C++ in 写 style?"))
    assert found.words[:4] == ["write", "0", "000", "words"]
    assert found.words[-3:] == ["in", "写", "style"]
    assert found.dense[DENSE.index("question")] == 1.0
    assert found.dense[DENSE.index("other_scripts")] == 1.0
    assert features_of(PromptView(excerpt="a 12 b")).words == ["a", "00", "b"] == features_of(PromptView(excerpt="a 12 b é")).words[:3]


def test_a_hidden_text_is_told_from_an_empty_demand():
    hidden = features_of(PromptView(excerpt="", prompt_tokens=100, prompt_chars=400))
    assert hidden.dense[DENSE.index("hidden")] == 1.0
    assert hidden.words == []


PIECES = ["at least", "no more than", "2", "1,500", "three", "ten", "-", " ", " ", " ", "word", "words", "pages", "sentence", "a fox", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_demands_need_no_more_than_what_stands_before_a_unit(text):
    """The quick reading finds what the pattern finds in the whole text."""
    largest = 0.0
    for quantifier, count, unit in length_demands._DEMAND.findall(text):
        number = length_demands._COUNTS.get(count) or int(count.replace(",", ""))
        share = 0.8 if quantifier in length_demands._UPPER else 1.0
        largest = max(largest, number * length_demands._TOKENS_PER[unit] * share)
    assert length_demands.demanded_tokens(text) == pytest.approx(min(largest, 32_768.0))


def test_the_shipped_net_is_what_its_card_says():
    card = verified(SHIPPED)
    assert card.format == "lengths"
    assert "alpaca_eval" in card.details["left_out"]
    assert not [name for name in load(SHIPPED).offsets if "alpaca" in name]


@given(st.lists(st.floats(-40, 40, width=32), min_size=7, max_size=7), st.floats(0.5, 2.0))
def test_the_nets_numbers_become_ascending_quantiles_around_the_median(outputs, widening):
    found = spread(outputs, widening)
    assert found == sorted(found)
    assert found[MEDIAN] == outputs[MEDIAN]


@pytest.mark.parametrize("text", ["Write a story of 2000 words about the sea.", "zzqx", "", "Übersetze 写 das: hello world"])
def test_the_net_says_what_its_layers_say_one_after_the_other(text):
    """What it keeps per term, to be quick, changes nothing."""
    stored = json.loads((SHIPPED / FILE).read_text())
    features = features_of(PromptView(excerpt=text, prompt_chars=len(text), prompt_tokens=len(text) // 4))
    first, second = stored["hidden"]
    shapes = [(first, stored["width"] + len(DENSE)), (first,), (second, first), (second,), (len(LEVELS), second), (len(LEVELS),)]
    w1, b1, w2, b2, w3, b3 = (
        np.frombuffer(base64.b64decode(layer), "<f2").astype(float).reshape(shape)
        for layer, shape in zip(stored["layers"], shapes, strict=True)
    )
    table = np.frombuffer(base64.b64decode(stored["embedding"]), "<i1").reshape(-1, stored["width"]) * np.array(stored["embedding_scale"])
    rows = {term: row for row, term in enumerate(stored["vocabulary"])}
    terms = [*features.words, *(" ".join(pair) for pair in pairwise(features.words))]
    known = [rows[term] for term in terms if term in rows]
    pooled = table[known].sum(0) / math.sqrt(max(1, len(known)))
    clipped = np.clip(features.dense, stored["dense_low"], stored["dense_high"])
    dense = (clipped - stored["dense_mean"]) * stored["dense_scale"]
    hidden = np.maximum(w2 @ np.maximum(w1 @ np.concatenate((pooled, dense)) + b1, 0.0) + b2, 0.0)
    assert load(SHIPPED).tell(features).log_lengths == pytest.approx(spread((w3 @ hidden + b3).tolist(), stored["widening"]), abs=1e-3)


def test_a_net_without_what_strangers_exceed_it_by_is_still_read(tmp_path):
    document = json.loads((SHIPPED / FILE).read_text())
    assert load(SHIPPED).newcomers == document.pop("newcomers") != 0.0
    (tmp_path / FILE).write_text(json.dumps(document))
    assert load(tmp_path).newcomers == 0.0


def test_a_net_that_cannot_be_used_says_why(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)
    document = json.loads((SHIPPED / FILE).read_text())
    for change, words in [
        ({"levels": [0.5]}, "other quantile levels"),
        ({"embedding": ""}, "are needed"),
        ({"layers": document["layers"][:3]}, "6 are needed"),
        ({"vocabulary": 3}, "cannot be read"),
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


def test_what_a_prompts_own_groups_add_can_be_taken_off_again():
    effects = Effects(LEVELS_OF)
    known, new = member("m", "t", "p"), member("m", "t", "another")
    for _ in range(40):
        mean, variance = effects.sum(known)
        effects.learn(known, 1.0 - mean, variance + known.noise, 1.0)
    mean, variance = effects.unseen(known, 1)
    whole = effects.sum(known)
    assert mean > 0.1
    assert variance < 0.0
    assert effects.sum(new) == pytest.approx((whole[0] - mean, whole[1] - variance))
    assert effects.unseen(new, 1) == (0.0, 0.0)


def test_the_group_without_news_for_longest_goes_first():
    effects = Effects(LEVELS_OF[:1], limit=2)
    for name in ("a", "b", "a", "c"):
        effects.learn(Membership((name,), 0.1, 0.1, (0.0, 0.1)), 0.5, 0.2, 1.0)
    assert effects.find("b") is None
    assert effects.find("a") is not None
    assert len(effects) == 2


def test_levels_move_until_they_cover():
    rng = np.random.default_rng(9)
    calibration = Calibration()
    stated = [0.0] * len(LEVELS)
    for _ in range(20_000):
        drawn = rng.normal()
        now = [value + move for value, move in zip(stated, calibration.correction(("all",)), strict=True)]
        calibration.learn(("all",), [float(drawn <= value) for value in now])
    expected = [-1.28, -0.67, 0.0, 0.67, 1.28, 1.645, 2.33]
    assert calibration.correction(("all",)) == pytest.approx(expected, abs=0.3)


def test_groups_add_up_and_are_bounded():
    calibration = Calibration(limit=3)
    for number in range(10):
        calibration.learn((f"g{number}",), [0.0] * len(LEVELS))
    assert len(calibration) == 3
    alone = calibration.correction(("g9",))
    assert calibration.correction(("g9", "g8")) == pytest.approx([2 * value for value in alone])
    assert calibration.correction(("strange",)) == [0.0] * len(LEVELS)


def test_an_outcome_of_half_the_weight_moves_half_as_far_and_settles_half_as_much():
    whole, half = Calibration(), Calibration()
    whole.learn(("g",), [0.0] * len(LEVELS))
    half.learn(("g",), [0.0] * len(LEVELS), 0.5)
    assert half.correction(("g",)) == pytest.approx([0.5 * value for value in whole.correction(("g",))])


def test_groups_scatter_as_they_have_scattered():
    rng = np.random.default_rng(3)
    scales = Scales()
    for _ in range(3000):
        for name, deviation in (("wild", 2.0), ("even", 0.5)):
            groups = (name, "all", None)
            scales.learn(groups, float(rng.normal(0.0, deviation)) ** 2 / scales.factor(groups))
    assert scales.factor(("wild", "all")) == pytest.approx(4.0, rel=0.35)
    assert scales.factor(("even", "all")) == pytest.approx(0.25, rel=0.35)
    assert scales.factor(("strange", None)) == 1.0


def test_what_is_known_of_scatter_is_bounded_in_number_and_size():
    scales = Scales(limit=3)
    for number in range(10):
        for _ in range(2000):
            scales.learn((f"g{number}",), 1e9)
    assert len(scales) == 3
    assert scales.factor(("g9",)) == pytest.approx(math.exp(BOUND))
    assert scales.factor(("g0",)) == 1.0


def test_a_slope_is_found_and_bounded_in_number_and_reach():
    rng = np.random.default_rng(5)
    slopes = Slopes(limit=2)
    assert slopes.of("new") == (0.0, VARIANCE)
    for _ in range(2000):
        for model, slope in (("terse", -0.3), ("plain", 0.0)):
            away = distance(USUAL + rng.normal(0.0, 1.0))
            mean, variance = slopes.of(model)
            total = 0.16 + variance * away * away
            slopes.learn(model, away, (slope * away + rng.normal(0.0, 0.4) - mean * away) / total, total, 1.0)
    assert slopes.of("terse")[0] == pytest.approx(-0.3, abs=0.08)
    assert slopes.of("plain")[0] == pytest.approx(0.0, abs=0.08)
    slopes.learn("third", 1.0, 1.0, 0.2, 1.0)
    assert len(slopes) == 2
    assert slopes.of("terse") == (0.0, VARIANCE)
    assert (distance(USUAL + 99.0), distance(-99.0)) == (REACH, -REACH)


def test_inputs_outside_their_range_are_moved_to_its_bound_and_counted_by_name():
    ranges = InputRanges([0.0, 1.0], [2.0, 1.0], ["size", "always_one"])
    assert ranges.clip([1.5, 1.0]) == [1.5, 1.0]
    assert ranges.outside == {}
    assert ranges.clip([-4.0, 7.0]) == [0.0, 1.0]
    assert ranges.clip([math.inf, math.nan]) == [2.0, 1.0]
    assert ranges.outside == {"size": 2, "always_one": 2}


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [([0.0], [1.0, 2.0], "1 lower and 2 upper bounds for 2 inputs"), ([3.0, 0.0], [1.0, 2.0], "input range of size is 3.0 to 1.0")],
)
def test_ranges_that_are_none_are_refused(low, high, words):
    with pytest.raises(ModelError, match=words):
        InputRanges(low, high, ["size", "other"])
