"""What perception makes of readings: types, lengths, importance, targets; and how it scores itself."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perception_kit import SUMMARY, completion, notice
from typing_kit import known

from hmas.agents.perception import model as model_module
from hmas.agents.perception.importance import importance_of
from hmas.agents.perception.lengths.base import SHIPPED, load
from hmas.agents.perception.lengths.model import LengthModel
from hmas.agents.perception.lengths.priors import PRIOR
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.reading import TASKS, Reading
from hmas.controller.core.errors import ModelError
from hmas.controller.core.slo import TargetTable, slo_for
from hmas.controller.core.types import OutcomeKind, TaskType


def model(**changes) -> PerceptionModel:
    return PerceptionModel(**({"min_confidence": 0.5} | changes))


def test_features_of_a_clear_request():
    features = model().perceive(notice(max_output_tokens=50), 100.5)
    slo = slo_for(TaskType.SUMMARIZATION, 0.75)
    assert features.task_type is TaskType.SUMMARIZATION
    assert (features.ttft_slo_ms, features.tpot_slo_ms) == (slo.ttft_ms, slo.tpot_ms)
    assert (features.importance, features.sent_s, features.prompt_tokens) == (0.75, 100.5, 300)
    assert features.output_tokens == features.output_tokens_p90 == pytest.approx(50.0)


def test_a_declared_target_stands_and_a_missing_one_is_filled_in():
    features = model(targets=TargetTable(scale=2.0)).perceive(notice(ttft_slo_ms=123.0), 100.0)
    assert features.ttft_slo_ms == 123.0
    assert features.tpot_slo_ms == slo_for(TaskType.SUMMARIZATION, 0.75, 2.0).tpot_ms
    assert model(targets=TargetTable(ttft_most_ms=900.0)).perceive(notice(), 100.0).ttft_slo_ms == 900.0, "as the gateway has it"


@pytest.mark.parametrize("excerpt", ["", "xyzzy", SUMMARY])
def test_below_the_floor_the_type_is_unknown_and_nothing_is_specialised(excerpt):
    features = model(min_confidence=0.95).perceive(notice(excerpt=excerpt), 100.0)
    assert features.task_type is TaskType.UNKNOWN
    assert features.ttft_slo_ms == slo_for(TaskType.UNKNOWN, 0.75).ttft_ms
    assert features.output_tokens == pytest.approx(PRIOR[TaskType.UNKNOWN].p50)


def test_unknown_requests_get_the_history_of_all_types():
    perception = model()
    texts = [SUMMARY, "Translate to French: the house is red", "Write a Python function that sorts a list", ""]
    for number in range(400):
        perception.perceive(notice(f"r{number}", excerpt=texts[number % len(texts)]), 100.0)
        perception.learn(completion(f"r{number}", 40))
    unknown = perception.perceive(notice("u", excerpt="", tenant="new"), 100.0)
    assert unknown.task_type is TaskType.UNKNOWN
    prior = math.log(PRIOR[TaskType.UNKNOWN].p50 / 40)
    assert abs(math.log(unknown.output_tokens / 40)) < 0.3 * prior, "most of the way to what all types were"


@pytest.mark.parametrize(
    ("text", "has_tools", "expected"),
    [("hello", False, 0.75), ("URGENT: the outage is back", False, 0.9), ("no rush, just testing", False, 0.6), ("x", True, 0.8)],
)
def test_importance(text, has_tools, expected):
    assert importance_of(text, has_tools=has_tools) == pytest.approx(expected)


@given(st.text(max_size=300), st.booleans())
def test_importance_is_bounded(text, has_tools):
    assert 0.5 <= importance_of(text, has_tools=has_tools) <= 1.0


def test_a_demand_moves_the_estimate():
    plain = model().perceive(notice(excerpt="Write a story about a fox."), 1.0)
    long = model().perceive(notice(excerpt="Write a story about a fox, no shorter than 8000 words."), 1.0)
    assert long.output_tokens > 2 * plain.output_tokens


def test_a_completion_counts_once_and_only_when_completed():
    perception = model()
    for number in range(60):
        perception.perceive(notice(f"r{number}"), 100.0)
        perception.learn(completion(f"r{number}", 20))
    before = perception.perceive(notice("x"), 100.0).output_tokens
    for _ in range(60):
        perception.learn(completion("r1", 9000))
        perception.learn(completion("x", 9000, outcome=OutcomeKind.CANCELLED))
        perception.learn(completion("y", 0))
    assert perception.perceive(notice("x"), 100.0).output_tokens == before


def test_with_a_base_answers_to_prompts_that_it_has_not_read_move_no_expectation():
    """The base expects of this question less than the task's prior says: answers as it expects them are no sign of a short-spoken model."""
    base = load(SHIPPED)
    perception = model(lengths=LengthModel(base))
    asked = notice(excerpt="Translate to French: the house is red", prompt_tokens=9)
    cold = perception.perceive(asked, 100.0).output_tokens
    assert cold < 0.5 * PRIOR[TaskType.TRANSLATION].p50
    for number in range(500):
        perception.learn(completion(f"of another instance {number}", round(cold), task_type=TaskType.TRANSLATION))
    assert perception.perceive(asked, 100.0).output_tokens == pytest.approx(cold, rel=0.2)
    assert perception.lengths.longest.bound([("n", "t")]) < math.log(0.1 * base.longest), "bounds need no prompt"


NONSENSE = [
    Reading(probabilities=(0.5, 0.5)),
    Reading(probabilities=(2.0,) + (0.0,) * 12),
    Reading(probabilities=(float("nan"),) * 13),
    Reading(probabilities=(0.9,) * 13),
    Reading(probabilities=(1.0,) + (0.0,) * 12, log_lengths=(1.0,)),
    Reading(probabilities=(1.0,) + (0.0,) * 12, log_lengths=(float("inf"),) * 7),
    Reading(),
]


@pytest.mark.parametrize("reading", NONSENSE)
def test_a_reading_that_is_none_leaves_the_type_unknown_with_the_historical_prior(reading):
    (features,) = model().conclude([notice()], [reading], 100.0)
    assert (features.task_type, features.confidence) == (TaskType.UNKNOWN, 0.0)
    assert features.output_tokens == pytest.approx(PRIOR[TaskType.UNKNOWN].p50)


def test_a_batch_is_answered_in_its_order_with_the_readers_name():
    notices = [notice("a"), notice("b", excerpt="Translate to French: the house is red"), notice("c", excerpt="")]
    said = model().perceive_all(notices, 100.0)
    assert [features.request_id for features in said] == ["a", "b", "c"]
    assert [features.task_type for features in said] == [TaskType.SUMMARIZATION, TaskType.TRANSLATION, TaskType.UNKNOWN]
    assert {features.source for features in said} == {"rules"}
    with pytest.raises(ModelError, match="1 readings of 3 prompts"):
        model().conclude(notices, [Reading()], 100.0)


def test_the_readers_lengths_are_told_within_the_cap():
    probabilities = tuple(float(task is TaskType.QA) for task in TASKS)
    logs = tuple(math.log(tokens) for tokens in (10, 20, 40, 80, 300, 400, 600))
    (features,) = model().conclude([notice(max_output_tokens=150)], [Reading(probabilities=probabilities, log_lengths=logs)], 100.0)
    assert features.task_type is TaskType.QA
    assert features.output_tokens == pytest.approx(40, rel=0.05)
    assert features.output_tokens_p90 == pytest.approx(150.0)


def test_forecasts_are_scored_when_their_completion_comes_and_only_then():
    perception = model()
    perception.perceive_all([notice(f"r{number}") for number in range(300)], 100.0)
    assert perception.tally.figures()["unknown_share"] == 0.0
    for number in range(300):
        assert perception.settle(completion(f"r{number}", 40 + number)) is not None
    assert perception.settle(completion("of another instance", 40)) is None
    learnt = perception.tally.learnt
    assert perception.settle(completion("of which no instance was asked", 40, asked=False)) is None
    assert perception.tally.learnt == learnt
    assert (perception.tally.requests, perception.tally.scored) == (300, 300)
    coverage = perception.tally.coverage()
    assert list(coverage) == ["0.1", "0.25", "0.5", "0.75", "0.9", "0.95", "0.99"]
    assert list(coverage.values()) == sorted(coverage.values())
    assert coverage["0.99"] > 0.9
    assert 0.0 < perception.tally.figures()["pinball"] < 1.0
    assert 0.0 < perception.tally.figures()["median_ape"] < 1.5


def test_an_answer_cut_by_its_cap_counts_as_the_share_that_would_have_gone_on():
    probabilities = tuple(float(task is TaskType.QA) for task in TASKS)
    logs = tuple(math.log(tokens) for tokens in (10, 20, 40, 80, 160, 200, 300))
    perception = model()
    perception.conclude([notice(max_output_tokens=40)], [Reading(probabilities=probabilities, log_lengths=logs)], 100.0)
    found = known(perception.settle(completion("r", 40, max_output_tokens=40)))
    # Half of the answers were said to go beyond 40 tokens: of these, half beyond the level of 0.75.
    assert found.below[:2] == (0.0, 0.0)
    assert found.below[2] == pytest.approx(0.0, abs=0.05)
    assert found.below[3] == pytest.approx(0.5, abs=0.05)
    assert found.below[6] == pytest.approx(0.98, abs=0.02)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(model_module, "REMEMBERED", 10)
    perception = model()
    for number in range(50):
        perception.perceive(notice(f"r{number}"), 100.0)
        perception.learn(completion(f"x{number}", 5))
    assert [number for number in range(50) if perception.settle(completion(f"r{number}", 5)) is not None] == list(range(40, 50))
    assert perception.settle(completion("r49", 5)) is None, "learnt from once"
