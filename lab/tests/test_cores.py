"""A measurement beside the cores of an engine."""

import os

import pytest
from hmas_lab.cores import beside

MINE = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(MINE) < 2, reason="needs two cores")
def test_this_process_leaves_a_core_and_comes_back():
    with beside(str(MINE[0])) as apart:
        assert apart
        assert os.sched_getaffinity(0) == set(MINE[1:])
    assert os.sched_getaffinity(0) == set(MINE)


@pytest.mark.parametrize("cores", [f"0-{max(MINE)}", ",".join(map(str, MINE)), "|".join(map(str, MINE))])
def test_where_no_core_is_left_nothing_changes(cores):
    with beside(cores) as apart:
        assert not apart
        assert os.sched_getaffinity(0) == set(MINE)
