"""The demo's four runs, and its progress."""

import pytest

from hmas.demo.calibration import Variant
from hmas.demo.progress import Reporter
from hmas.demo.story import NAMES, variants


def test_four_runs_differ_in_what_they_are_named_for():
    found = {v.name: v for v in variants({"keep": 28, "shed": 24})}
    assert tuple(found) == NAMES
    assert found["engine-default"] == Variant(name="engine-default", policy="fcfs", n_run=0, overdue="keep")
    assert found["fcfs-best-cap"] == Variant(name="fcfs-best-cap", n_run=28)
    assert found["fcfs-best-cap-shed"] == Variant(name="fcfs-best-cap-shed", n_run=24, overdue="shed")
    assert found["hmas"].n_run == 0, "H-MAS does not get the best window"


class Clock:
    def __init__(self):
        self.now = 100.0

    def now_s(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reporter(clock):
    return Reporter(clock, [("one", 10.0), ("two", 20.0)])


def test_what_is_left_is_this_phase_and_all_that_follow(reporter, clock):
    reporter.phase("one")
    clock.now += 4.0
    assert reporter.left_s() == 26.0
    reporter.phase("two")
    clock.now += 25.0
    assert reporter.left_s() == 0.0
    assert reporter.elapsed_s == 29.0


def test_phases_may_come_in_any_order(reporter, clock):
    assert reporter.left_s() == 30.0
    reporter.phase("two")
    clock.now += 5.0
    assert reporter.left_s() == 25.0
    reporter.phase("one")
    assert reporter.left_s() == 10.0


def test_progress_comes_now_and_then(reporter, clock, capsys):
    reporter.phase("one")
    for _ in range(20):
        clock.now += 0.5
        reporter.tick("3 of 9")
    reporter.say("done")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[  0.0 s, about  30 s left] one",
        "[  5.0 s, about  25 s left] one: 3 of 9",
        "[ 10.0 s, about  20 s left] one: 3 of 9",
        "[ 10.0 s] done",
    ]
