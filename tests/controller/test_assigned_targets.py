"""Targets that perception assigns stay within what Table 6 and Eq. 14 can give."""

import pytest

from hmas.controller.core.slo import TargetTable, slo_for
from hmas.controller.core.types import Slo, TaskType


def test_absurd_targets_become_the_nearest_that_the_table_gives():
    assert TargetTable().within(Slo(ttft_ms=1.0, tpot_ms=1.0)) == Slo(ttft_ms=3200.0, tpot_ms=56.0)
    assert TargetTable().within(Slo(ttft_ms=8e7, tpot_ms=8e7)) == Slo(ttft_ms=15_600.0, tpot_ms=180.0)
    assert TargetTable().within(Slo(ttft_ms=5000.0, tpot_ms=1.0)) == Slo(ttft_ms=5000.0, tpot_ms=56.0)


@pytest.mark.parametrize("scale", [0.001, 0.37, 1.0, 4.0])
@pytest.mark.parametrize("importance", [0.5, 0.8, 1.0])
def test_what_the_table_gives_stays_as_it_is(scale: float, importance: float):
    for task in TaskType:
        assert TargetTable(scale=scale).within(slo_for(task, importance, scale)) == slo_for(task, importance, scale)


def test_no_assigned_ttft_target_is_above_the_ceiling():
    table = TargetTable(ttft_most_ms=2000.0)
    for task in TaskType:
        assert table.target(task, 0.75) == Slo(ttft_ms=2000.0, tpot_ms=slo_for(task, 0.75).tpot_ms)
    assert table.within(Slo(ttft_ms=8e7, tpot_ms=100.0)) == Slo(ttft_ms=2000.0, tpot_ms=100.0)
    assert TargetTable(scale=0.1, ttft_most_ms=2000.0).target(TaskType.QA, 0.75).ttft_ms == 400.0
