"""Verdicts on agents' answers, and what is kept of an answer whatever its verdict."""

import pytest

from controller.control.contest import WINDOW, Contest
from controller.core.slo import slo_for, within_table
from controller.core.types import Slo, TaskType


def contest(agent: float, default: float, count: int, **fields) -> Contest:
    made = Contest(0.05, **fields)
    for _ in range(count):
        made.add(agent, default)
    return made


def test_worse_over_a_full_window_sets_aside_and_no_worse_brings_back():
    found = contest(0.5, 0.1, WINDOW - 1)
    assert not found.aside
    assert found.add(0.5, 0.1)
    assert found.aside
    for _ in range(WINDOW - 1):
        assert not found.add(0.1, 0.1)
    assert found.add(0.1, 0.1)
    assert not found.aside


def test_what_is_no_number_counts_as_a_large_loss():
    assert contest(float("nan"), 0.1, 1).agent_loss == contest(1e9, 0.1, 1).agent_loss == 10.0


@pytest.mark.parametrize("scored", [0, WINDOW])
def test_one_failure_sets_aside_at_once_however_many_were_scored(scored: int):
    found = contest(0.0, 0.0, scored, full=20)
    assert found.fail()
    assert found.aside
    assert not found.fail()


def test_proven_takes_enough_requests_and_no_greater_loss():
    assert not contest(0.1, 0.1, 19).proven
    assert contest(0.1, 0.1, 20).proven
    assert not contest(0.3, 0.1, 20).proven
    assert not contest(0.3, 0.1, WINDOW).proven


def test_targets_stay_within_what_the_table_can_give():
    assert within_table(Slo(ttft_ms=1.0, tpot_ms=1.0)) == Slo(ttft_ms=3200.0, tpot_ms=56.0)
    assert within_table(Slo(ttft_ms=8e7, tpot_ms=8e7)) == Slo(ttft_ms=15_600.0, tpot_ms=180.0)
    for scale in (0.001, 0.37, 1.0, 4.0):
        for task in TaskType:
            for importance in (0.5, 0.8, 1.0):
                assert within_table(slo_for(task, importance, scale), scale) == slo_for(task, importance, scale)
