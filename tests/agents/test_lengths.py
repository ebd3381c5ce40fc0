"""The length model: quantiles that are ascending, bounded, learnt, and honest under drift."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_kit import known

from hmas.agents.perception.lengths import model as lengths
from hmas.agents.perception.lengths.base import SHIPPED, load
from hmas.agents.perception.lengths.model import LengthModel
from hmas.agents.perception.lengths.priors import PRIOR
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.reading import TASKS, PromptView, Reading
from hmas.agents.perception.training.data import view_of_prompt
from hmas.controller.core.client_bodies import Shape
from hmas.controller.core.lengths import LEVELS, MEDIAN, P90
from hmas.controller.core.types import TaskType

READ = Reading(probabilities=tuple(1.0 / len(TASKS) for _ in TASKS))
LENGTHS = Reading(probabilities=READ.probabilities, log_lengths=(3.0, 3.6, 4.4, 5.2, 5.9, 6.3, 7.0))


@pytest.fixture(scope="module")
def base():
    return load(SHIPPED)


def ask(model: LengthModel, excerpt: str = "Why is the sky blue?", /, *, reading: Reading = READ, **changes):
    view: dict[str, Any] = {"excerpt": excerpt, "prompt_chars": len(excerpt), "prompt_tokens": len(excerpt) // 4} | {
        key: changes.pop(key)
        for key in ("prompt_chars", "prompt_tokens", "max_output_tokens", "turns", "has_tools", "images", "context_tokens", "system")
        if key in changes
    }
    request: dict[str, Any] = {"task": TaskType.QA, "tenant": "t", "model": "m"} | changes
    return model.forecast(PromptView(**view), reading, **request)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=60),
            st.sampled_from([READ, LENGTHS, Reading()]),
            st.sampled_from(TaskType),
            st.sampled_from(["a", "b"]),
            st.text(max_size=12),
            st.sampled_from(["", "s1", "s2"]),
            st.integers(0, 5000),
            st.integers(-1, 200_000),
        ),
        max_size=40,
    )
)
def test_quantiles_ascend_within_one_token_and_the_cap_whatever_is_learnt(base, history):
    model = LengthModel(base)
    for text, reading, task, tenant, name, session, cap, output in history:
        forecast = ask(model, text, reading=reading, task=task, tenant=tenant, model=name, session=session, max_output_tokens=cap)
        assert len(forecast.tokens) == len(LEVELS)
        assert list(forecast.log_quantiles) == sorted(forecast.log_quantiles)
        assert all(0.999 <= tokens <= (cap or 1_000_000) * 1.001 for tokens in forecast.tokens)
        model.learn(forecast, output if cap == 0 else min(output, cap))


def test_two_models_with_the_same_history_say_the_same(base):
    rng = np.random.default_rng(5)
    one, two = LengthModel(base), LengthModel(base)
    for number in range(200):
        output = int(rng.integers(1, 900))
        for model in (one, two):
            model.learn(ask(model, f"prompt {number % 17}", model=f"m{number % 3}", session=f"s{number % 5}"), output)
    assert ask(one, "prompt 3").log_quantiles == ask(two, "prompt 3").log_quantiles


def test_the_expectation_comes_from_net_and_reader_or_from_one_of_them_or_from_the_history(base):
    assert ask(LengthModel(), reading=LENGTHS).tokens[MEDIAN] == pytest.approx(math.exp(4.4))
    alone, both = ask(LengthModel(base)), ask(LengthModel(base), reading=LENGTHS)
    assert alone.log_quantiles[MEDIAN] < both.log_quantiles[MEDIAN] < 4.4 or alone.log_quantiles[MEDIAN] > both.log_quantiles[MEDIAN] > 4.4
    assert ask(LengthModel(base), reading=Reading()).tokens == alone.tokens, "the base reads the text by itself"
    unread = ask(LengthModel(base), "", reading=Reading(), task=TaskType.UNKNOWN)
    assert unread.tokens[MEDIAN] == pytest.approx(PRIOR[TaskType.UNKNOWN].p50)
    assert unread.tokens[P90] > PRIOR[TaskType.UNKNOWN].p90


def test_a_reader_that_was_silent_for_a_while_leaves_the_forecasts_as_they_were(base):
    rng = np.random.default_rng(3)
    model = LengthModel(base)

    def answers(count: int, reading: Reading) -> None:
        for number in range(count):
            task = TaskType.ESSAY_GENERATION if reading.probabilities else TaskType.UNKNOWN
            forecast = ask(model, f"Write an essay about subject {number}.", reading=reading, task=task)
            model.learn(forecast, round(1100 * rng.lognormal(0.0, 0.2)))

    answers(300, READ)
    answers(300, Reading())
    after = ask(model, "Write an essay about the sea.", task=TaskType.ESSAY_GENERATION).tokens
    assert 900 < after[MEDIAN] < 1400
    assert after[P90] < 2200


def test_a_reader_that_knows_better_comes_to_be_believed(base):
    """Lengths are what the reader says, whatever the words are."""
    rng = np.random.default_rng(2)
    model = LengthModel(base)
    errors = []
    for number in range(600):
        middle = float(rng.uniform(3.0, 7.0))
        reading = Reading(probabilities=READ.probabilities, log_lengths=tuple(middle + step for step in (-1, -0.5, 0, 0.5, 1, 1.3, 2)))
        forecast = ask(model, f"question {number}", reading=reading)
        errors.append(abs(forecast.log_quantiles[MEDIAN] - middle))
        model.learn(forecast, round(math.exp(middle)))
    assert np.mean(errors[-200:]) < 0.6 * np.mean(errors[:50])


def test_the_shipped_base_tells_a_translation_from_a_report(base):
    model = LengthModel(base)
    short = ask(model, "Translate this sentence from German to English: Guten Morgen, wie geht es dir?")
    long = ask(model, "Write a comprehensive research report on carbon capture, no shorter than 4000 words.")
    assert 5 * short.tokens[MEDIAN] < long.tokens[MEDIAN]


@pytest.mark.parametrize("question", ["What is the capital of France?", "Explain how a heat pump works.", "Write a poem about autumn."])
@pytest.mark.parametrize("model", ["sim", "gpt-4o"])
@pytest.mark.parametrize(
    "changes",
    [
        {"turns": 1},
        {"turns": 3},
        {"turns": 9},
        {"turns": 2, "has_tools": True},
        {"turns": 1, "images": 2},
        {"turns": 10**6, "images": 10**6},
    ],
)
def test_what_surrounds_a_question_does_not_change_its_length_out_of_measure(base, question, model, changes):
    bare = ask(LengthModel(base), question, model=model).tokens
    found = ask(LengthModel(base), question, model=model, **changes).tokens
    assert bare[MEDIAN] / 3.0 < found[MEDIAN] < bare[MEDIAN] * 3.0
    assert found[-1] < 20_000


def test_every_shape_of_request_gets_the_forecast_of_its_question(base):
    """Bodies as clients send them, read as the gateway reads them: what surrounds a question changes nothing before any answer came."""
    question = "Explain the difference between a virus and a bacterium, with two examples of each."
    said = {
        shape: LengthModel(base)
        .forecast(
            view_of_prompt(question, shape, exchanges=[("Hello!", "Hello, what can I do?")]),
            READ,
            task=TaskType.QA,
            tenant="t",
            model="sim",
        )
        .tokens
        for shape in Shape
        if shape is not Shape.TOOL_RESULT
    }
    bare = said[Shape.COMPLETION]
    assert all(tokens[MEDIAN] == pytest.approx(bare[MEDIAN]) for tokens in said.values()), said
    # That an application may differ from others widens its quantiles a little.
    assert all(tokens == pytest.approx(bare, rel=0.15) for tokens in said.values()), said
    assert bare[-1] < 20_000


def test_an_answer_is_not_expected_to_exceed_the_room_in_the_engines_context(base):
    free = ask(LengthModel(base), "Write a long story.", prompt_tokens=824)
    tight = ask(LengthModel(base), "Write a long story.", prompt_tokens=824, context_tokens=1024)
    assert free.tokens[P90] > 200
    assert max(tight.tokens) == pytest.approx(200)
    # An estimate of the prompt that fills the context is wrong, or the sum of several prompts.
    assert max(ask(LengthModel(base), prompt_tokens=5000, context_tokens=1024).tokens) == pytest.approx(128)
    assert max(ask(LengthModel(base), prompt_tokens=900, context_tokens=1024, max_output_tokens=50).tokens) == pytest.approx(50)


def test_an_application_that_wants_short_answers_is_learnt_by_its_system_prompt(base):
    model = LengthModel(base)
    for number in range(150):
        model.learn(ask(model, f"What about thing {number}?", system="Answer in one word."), 3)
        model.learn(ask(model, f"What about thing {number} then?", system="Explain at length."), 900)
    short, long = (ask(model, "What about the sea?", system=text).tokens[MEDIAN] for text in ("Answer in one word.", "Explain at length."))
    assert 4.0 * short < long


def test_mixed_chats_converge_as_single_turns_do(base):
    """The length is the question's; before, traffic of 1, 3 and 5 messages never converged."""
    errors = {}
    for name, kinds in (("single", [Shape.CHAT]), ("mixed", [Shape.CHAT, Shape.HISTORY_1, Shape.HISTORY_4])):
        rng, model, found = np.random.default_rng(3), LengthModel(base), []
        for number in range(300):
            view = view_of_prompt(
                f"Tell me about thing {number}.", kinds[number % len(kinds)], exchanges=[("Hi", "Hello!"), ("And?", "Yes.")]
            )
            forecast = model.forecast(view, READ, task=TaskType.QA, tenant="t", model="sim")
            length = rng.normal(4.0, 0.5)
            found.append(abs(forecast.log_quantiles[MEDIAN] - length))
            model.learn(forecast, max(1, round(math.exp(length))))
        errors[name] = np.mean(found[100:])
    assert errors["mixed"] < 1.1 * errors["single"] < 0.6


@pytest.mark.parametrize("changes", [{"model": "wordy"}, {"tenant": "wordy"}, {"session": "wordy"}, {"task": TaskType.ESSAY_GENERATION}])
def test_what_differs_between_requests_is_learnt_of_the_group_that_it_belongs_to(base, changes):
    model = LengthModel(base)
    rng = np.random.default_rng(3)
    for number in range(300):
        wordy = number % 2 == 1
        forecast = ask(model, f"question {number} about the sea", **({"session": "plain"} | changes if wordy else {"session": "plain"}))
        model.learn(forecast, int((1200 if wordy else 60) * rng.lognormal(0.0, 0.3)) + 1)
    plain = ask(model, "a question of another kind about the sea", session="plain").tokens[MEDIAN]
    assert ask(model, "a question of another kind about the sea", **({"session": "plain"} | changes)).tokens[MEDIAN] > 3.0 * plain


def test_a_prompt_that_comes_back_is_remembered_and_a_new_one_is_not_taken_for_it(base):
    model = LengthModel(base)
    for number in range(200):
        model.learn(ask(model, f"Tell me about number {number}."), 100)
        model.learn(ask(model, "Print the whole list again, please."), 1500)
    assert ask(model, "Print the whole list again, please.").tokens[MEDIAN] == pytest.approx(1500, rel=0.4)
    assert ask(model, "Tell me about number 7777.").tokens[MEDIAN] < 400


def test_answers_at_the_cap_are_known_to_be_longer():
    """True lengths have a median of 400; with most answers cut at 300 a mean of what came would say less than 300."""
    rng = np.random.default_rng(11)
    model = LengthModel()
    for number in range(1500):
        forecast = ask(model, f"{number}", reading=Reading(), max_output_tokens=300)
        assert forecast.tokens[-1] <= 300.001
        model.learn(forecast, min(300, int(400 * rng.lognormal(0.0, 0.5)) + 1))
    free = ask(model, "free", reading=Reading())
    assert 300 < free.tokens[MEDIAN] < 600
    assert ask(model, "capped", reading=Reading(), max_output_tokens=300).tokens[MEDIAN] == pytest.approx(300)


def covered(model: LengthModel, draw, rows: int, *, skip: int = 0) -> np.ndarray:
    """Share of lengths at or below each stated quantile, each foretold before it is learnt."""
    hits = []
    for number in range(rows):
        changes, output = draw(number)
        forecast = ask(model, f"prompt number {number}", **changes)
        if number >= skip:
            hits.append([math.log(output) <= quantile + 1e-9 for quantile in forecast.log_quantiles])
        model.learn(forecast, output)
    return np.mean(hits, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lognormal", "bimodal", "shift", "spread"])
def test_stated_levels_cover_within_two_points_also_when_the_lengths_change(base, kind):
    rng = np.random.default_rng(17)

    def draw(number: int):
        model = f"m{number % 3}"
        late = number >= 4000
        centre, spread = 200.0 * (1 + number % 3), 0.6
        if kind == "bimodal":
            centre *= 0.05 if rng.random() < 0.4 else 1.0
        if kind == "shift":
            centre *= 6.0 if late else 1.0
        if kind == "spread":
            spread = 1.2 if late else 0.3
        return {"model": model}, int(centre * rng.lognormal(0.0, spread)) + 1

    share = covered(LengthModel(base), draw, 8000, skip=500)
    assert np.abs(share - LEVELS).max() < 0.02, share


def test_a_fixed_forecast_would_not_have_covered_the_shift(base):
    """The check above would fail without learning: the same stream, foretold and not learnt."""
    rng = np.random.default_rng(17)
    model = LengthModel(base)
    hits = [
        math.log(1200.0 * rng.lognormal(0.0, 0.6)) <= quantile
        for number in range(300)
        for quantile in ask(model, f"prompt number {number}").log_quantiles[MEDIAN : MEDIAN + 1]
    ]
    assert abs(float(np.mean(hits)) - 0.5) > 0.1


def test_a_model_that_answers_alike_to_everything_gets_narrow_quantiles(base):
    rng = np.random.default_rng(6)
    model = LengthModel(base)
    for number in range(500):
        for name, deviation in (("even", 0.1), ("wild", 1.3)):
            model.learn(ask(model, f"prompt {number} of {name}", model=name), round(math.exp(rng.normal(5.0, deviation))) + 1)
    width = {name: (told := ask(model, "a new prompt", model=name).log_quantiles)[P90] - told[0] for name in ("even", "wild")}
    assert 2.0 * width["even"] < width["wild"]


def test_what_is_remembered_is_bounded(base):
    model = LengthModel(base, groups=500)
    for number in range(2000):
        model.learn(ask(model, f"prompt {number}", tenant=f"t{number}", model=f"m{number}", session=f"s{number}"), 50)
    assert model.groups <= 500
    assert len(model.calibration) <= 4096
    assert len(model.longest) <= 4096
    assert len(model.models) <= lengths.MODELS


@pytest.mark.parametrize("output", [0, -3])
def test_no_tokens_teach_nothing(base, output):
    model = LengthModel(base)
    before = ask(model)
    model.learn(before, output)
    assert model.groups == 0
    assert ask(model).log_quantiles == before.log_quantiles


def test_a_degenerate_answer_counts_as_one_odd_answer(base):
    model = LengthModel(base)
    for number in range(200):
        model.learn(ask(model, f"prompt {number}"), 100)
    before = ask(model, "another").tokens[MEDIAN]
    model.learn(ask(model, "another one"), 60_000)
    assert ask(model, "another").tokens[MEDIAN] < 1.5 * before


def test_hundreds_that_are_answered_before_the_first_completes_are_one_mistake_and_not_hundreds():
    model = LengthModel()
    views = [PromptView(excerpt=f"prompt {number}", prompt_tokens=300) for number in range(600)]
    who: dict[str, Any] = {"task": TaskType.SUMMARIZATION, "tenant": "t", "model": "m"}
    for forecast in [model.forecast(view, Reading(), **who) for view in views]:
        model.learn(forecast, 7)
    tokens = model.forecast(PromptView(excerpt="another", prompt_tokens=300), Reading(), **who).tokens
    assert tokens[MEDIAN] == pytest.approx(7, rel=0.3)
    assert tokens[0] > 4


def test_two_models_on_one_base_count_their_own_inputs_outside_its_ranges(base):
    one, two = LengthModel(base), LengthModel(base)
    ask(one, prompt_tokens=10**9, prompt_chars=10**9)
    assert known(one.ranges).out_of_range
    assert known(two.ranges).out_of_range == base.ranges.out_of_range == {}


def test_perception_works_with_the_fresh_length_model_that_it_is_given(base):
    given = LengthModel(base)
    assert PerceptionModel(min_confidence=0.5, lengths=given).lengths is given
