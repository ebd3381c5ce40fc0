"""Agents against the defaults that they replace: set aside when worse, back when no worse, licensed to hold only by coverage."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.control.agent_scores import HELD_LEAST, LOSS_MOST, PROOF_LEAST, WINDOW, AgentScores, Contest, shape_of
from hmas.controller.control.estimates import covered_upper
from hmas.controller.core.types import Estimates, Slo

SLO = Slo(ttft_ms=1000, tpot_ms=50)


def lengths(median: float, upper: float) -> Estimates:
    return Estimates(slo=SLO, output_tokens=median, output_tokens_upper=upper)


def test_an_agent_is_set_aside_after_a_full_window_and_comes_back_after_another():
    contest = Contest(0.02)
    verdicts = [contest.add(0.9, 0.3) for _ in range(WINDOW)]
    assert verdicts == [False] * (WINDOW - 1) + [True]
    assert contest.aside
    verdicts = [contest.add(0.2, 0.3) for _ in range(WINDOW)]
    assert verdicts.count(True) == 1
    assert not contest.aside


def test_one_whose_losses_swing_is_set_aside_less_and_less_often():
    contest = Contest(0.02)

    def changes(requests: int, period: int = 2 * WINDOW) -> int:
        return sum(contest.add(0.9 if number % period < WINDOW else 0.1, 0.3) for number in range(requests))

    early, later = changes(20 * WINDOW), changes(20 * WINDOW)
    assert 2 <= later <= early // 2
    for _ in range(200 * WINDOW):
        contest.add(0.1, 0.3)
    assert changes(2 * WINDOW) == 2, "what has long been good comes back as fast as at first"


@given(st.lists(st.floats(0, 1), min_size=WINDOW, max_size=200))
def test_one_that_says_the_same_as_the_default_is_never_set_aside(losses):
    contest = Contest(0.02)
    assert not any(contest.add(loss, loss) for loss in losses)


def test_losses_that_are_no_numbers_count_as_the_largest():
    contest = Contest(0.02)
    for _ in range(WINDOW):
        contest.add(math.nan, 0.1)
    assert contest.aside
    assert contest.agent_loss == LOSS_MOST


@pytest.mark.parametrize("median", [0.0, 1.0, 1e9, math.nan, math.inf])
def test_absurd_lengths_are_set_aside_within_fifty_answers(median):
    scores = AgentScores()
    for number in range(WINDOW):
        scores.answered("one message", lengths(median, median), lengths(128, 1024), 100 + number)
    assert scores.lengths.aside
    assert not scores.proven("one message")


def test_lengths_may_hold_back_only_where_they_have_covered_answers_of_that_shape():
    scores = AgentScores()
    for _ in range(PROOF_LEAST - 1):
        scores.answered("one message", lengths(100, 300), lengths(128, 1024), 120)
    assert not scores.proven("one message")
    scores.answered("one message", lengths(100, 300), lengths(128, 1024), 120)
    assert scores.proven("one message")
    assert not scores.proven("completion")
    for _ in range(10):
        scores.answered("one message", lengths(100, 300), lengths(128, 1024), 900)
    assert not scores.proven("one message")


def test_a_forecast_that_answers_outgrow_is_covered_by_the_history_where_nothing_is_judged():
    scores = AgentScores(judging=False)
    forecast, history = lengths(100, 300), lengths(128, 1024)
    assert not scores.inconsistent("one message")
    for _ in range(PROOF_LEAST):
        scores.answered("one message", forecast, history, 120)
    assert not scores.inconsistent("one message")
    assert covered_upper(forecast, history, inconsistent=False) == 300.0
    for _ in range(10):
        scores.answered("one message", forecast, history, 900)
    assert scores.proven("one message")
    assert scores.inconsistent("one message")
    assert covered_upper(forecast, history, inconsistent=True) == 1024.0
    assert covered_upper(history, forecast, inconsistent=True) == 1024.0


def test_costs_are_judged_by_what_was_measured():
    scores = AgentScores()
    assert not any(scores.timed((100.0, 20.0), (200.0, 30.0), (110.0, 21.0)) for _ in range(WINDOW))
    assert [scores.timed((1e9, 0.0), (200.0, 30.0), (110.0, 21.0)) for _ in range(WINDOW)].count(True) == 1
    assert scores.costs.aside


def test_a_window_that_held_a_request_back_beside_room_is_set_aside_at_once():
    scores = AgentScores()
    assert not any(scores.dispatched("statera", held=False, relieved=False) for _ in range(HELD_LEAST))
    assert scores.dispatched("statera", held=True, relieved=True)
    assert scores.windows["statera"].aside
    assert not scores.windows["meta"].aside
    verdicts = [scores.dispatched("statera", held=False, relieved=False) for _ in range(WINDOW)]
    assert verdicts.count(True) == 1, "it comes back when it would have held nothing back"


def test_shapes_are_few_and_told_apart():
    shapes = {shape_of(turns=turns, has_tools=tools) for turns in range(40) for tools in (False, True)}
    assert len(shapes) == 8


@pytest.mark.parametrize("scored", [0, WINDOW])
def test_one_failure_sets_aside_at_once_however_many_were_scored(scored: int):
    contest = Contest(0.05)
    for _ in range(scored):
        contest.add(0.0, 0.0)
    assert contest.fail()
    assert contest.aside
    assert not contest.fail()


def test_bounds_count_once_they_have_proven_right_and_not_where_they_are_far_too_long():
    scores = AgentScores()
    verdicts = [scores.bounded(310.0, 300.0, 120) for _ in range(PROOF_LEAST)]
    assert verdicts == [False] * (PROOF_LEAST - 1) + [True]
    assert scores.bounds.proven
    careful, usual = AgentScores(bound_level=0.98), AgentScores()
    for number in range(2 * WINDOW):
        for scores in (careful, usual):
            scores.bounded(900.0, 300.0, 120 if number % 50 else 900)
    assert (careful.bounds.proven, usual.bounds.proven) == (True, False), "two in a hundred are longer than without the bound"
    absurd = AgentScores()
    assert not any(absurd.bounded(16_000.0, 300.0, 120) for _ in range(WINDOW - 1))
    assert not absurd.bounds.proven
