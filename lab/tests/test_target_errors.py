"""Errors of assigned targets: what a wrong task type costs in milliseconds, and that what comes along with a prompt costs nothing."""

import pytest
from hmas_lab.training.shapes import evaluate_shapes
from hmas_lab.training.targets import errors_of, evaluate_targets

from hmas.agents.perception.reading import TASKS, PromptView, Reading
from hmas.agents.perception.training.data import Row
from hmas.controller.core.client_bodies import Shape
from hmas.controller.core.slo import BASE_SLO, slo_for
from hmas.controller.core.types import DEFAULT_IMPORTANCE, TaskType

QA, DIALOGUE, SUMMARY, UNKNOWN = TaskType.QA, TaskType.DIALOGUE, TaskType.SUMMARIZATION, TaskType.UNKNOWN


def prompt(task, text="Which river runs through the old town?"):
    return Row(prompt=text, task=task, source="made", licence="MIT")


class Always:
    """A reader that takes everything for one type, with this confidence."""

    name = "always"

    def __init__(self, task, confidence=0.99):
        rest = (1.0 - confidence) / (len(TASKS) - 1)
        self._reading = Reading(probabilities=tuple(confidence if one is task else rest for one in TASKS))

    def read(self, prompts):
        return [self._reading] * len(prompts)


def test_right_types_have_no_error_and_wrong_ones_that_of_their_row():
    rows = [prompt(QA), prompt(QA), prompt(SUMMARY)]
    right = evaluate_targets(Always(QA), rows[:2])
    assert (right.n, right.ttft_mae_ms, right.tpot_mae_ms, right.exact) == (2, 0.0, 0.0, 1.0)
    found = evaluate_targets(Always(QA), rows)
    true, said = (slo_for(task, DEFAULT_IMPORTANCE) for task in (SUMMARY, QA))
    assert found.ttft_mae_ms == pytest.approx((true.ttft_ms - said.ttft_ms) / 3.0)
    assert found.tpot_mae_ms == pytest.approx((true.tpot_ms - said.tpot_ms) / 3.0)
    assert (found.exact, found.stricter, found.looser) == pytest.approx((2 / 3, 1 / 3, 0.0))


def test_types_of_the_same_row_may_be_mistaken_for_each_other_and_a_doubtful_one_gets_the_middle():
    assert BASE_SLO[QA] == BASE_SLO[DIALOGUE]
    assert evaluate_targets(Always(DIALOGUE), [prompt(QA)]).exact == 1.0
    doubtful = evaluate_targets(Always(QA, confidence=0.2), [prompt(QA)])
    assert doubtful == evaluate_targets(None, [prompt(QA)])
    assert doubtful.ttft_mae_ms == slo_for(UNKNOWN, DEFAULT_IMPORTANCE).ttft_ms - slo_for(QA, DEFAULT_IMPORTANCE).ttft_ms
    assert doubtful.looser == 1.0


def test_an_importance_that_perception_does_not_see_is_an_error():
    urgent = prompt(QA, "This is urgent: which river runs through the old town?")
    unseen = errors_of([urgent], [PromptView(excerpt="which river runs through the old town?")], [QA])
    assert unseen.ttft_mae_ms == slo_for(QA, DEFAULT_IMPORTANCE).ttft_ms - slo_for(QA, DEFAULT_IMPORTANCE + 0.15).ttft_ms
    assert unseen.looser == 1.0
    assert evaluate_targets(Always(QA), [urgent]).exact == 1.0


def test_every_shape_of_request_is_judged_and_what_comes_along_changes_no_target():
    found = evaluate_shapes(Always(QA), [prompt(QA), prompt(QA, "Who wrote it, and please take your time?")])
    assert set(found) == {shape.value for shape in Shape}
    assert {(one["ttft_mae_ms"], one["tpot_mae_ms"]) for one in found.values()} == {(0.0, 0.0)}
