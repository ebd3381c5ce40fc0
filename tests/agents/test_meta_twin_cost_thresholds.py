"""Where a replay of `robust-edf` begins: the threshold as it was in truth, or as the last replay had it."""

import random
from statistics import fmean

import pytest
from msgspec.structs import replace
from twin_kit import asked, looked, told, twin_of
from typing_kit import of_type

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.cost_thresholds import KEPT, NEAR_S, CostThresholds
from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.agents.meta.twin.twin import Question

RED = Candidate(policy="robust-edf")


def overload(seconds: float = 240.0, rate: float = 12.0, seed: int = 3):
    """Half again as much as `demo-small` can do, one request in four ten times as long as the others."""
    draw, at_s = random.Random(seed), 1000.0
    window: list[PastRequest] = []
    while (at_s := at_s + draw.expovariate(rate)) < 1000.0 + seconds:
        window.append(asked(len(window), at_s, draw.choice([40, 40, 40, 400]), ttft_ms=draw.uniform(1000.0, 6000.0)))
    return window


def snapshot(at_s: float, cost_threshold: float, policy: str = "robust-edf"):
    return replace(told(at_s), policy=policy, cost_threshold=cost_threshold)


def test_what_the_gateway_told_near_that_moment_counts_and_no_further():
    cost_thresholds = CostThresholds()
    for second in range(100, 160):
        cost_thresholds.observe(snapshot(float(second), 10.0 * second))
    assert cost_thresholds.at(120.4) == 1200.0
    assert cost_thresholds.at(100.0 - NEAR_S) == 1000.0
    assert cost_thresholds.at(100.0 - NEAR_S - 0.1) == 0.0
    assert cost_thresholds.at(159.0 + NEAR_S + 0.1) == 0.0


def test_where_another_policy_ran_the_last_replay_tells_it():
    cost_thresholds = CostThresholds()
    for second in range(100, 160):
        cost_thresholds.observe(snapshot(float(second), 500.0, policy="robust-edf" if second < 130 else "edf"))
    cost_thresholds.replayed([(100.0 + 5.0 * slot, 700.0 + slot) for slot in range(20)])
    assert cost_thresholds.at(110.0) == 500.0
    assert cost_thresholds.at(150.2) == 710.0
    cost_thresholds.replayed(())
    assert cost_thresholds.at(150.0) == 0.0


def test_readings_are_bounded_and_nonsense_is_none():
    cost_thresholds = CostThresholds()
    for tenth in range(20 * KEPT):
        cost_thresholds.observe(snapshot(0.1 * tenth, 5.0))
    last_s = 2.0 * KEPT
    assert cost_thresholds.at(last_s - KEPT - 2.0 * NEAR_S) == 0.0, "forgotten"
    assert cost_thresholds.at(last_s - KEPT + 2.0 * NEAR_S) == 5.0
    for value in (-1.0, float("nan"), float("inf"), 1e12):
        cost_thresholds.observe(snapshot(last_s + 60.0, value))
    assert cost_thresholds.at(last_s + 60.0) == 0.0
    cost_thresholds.observe(snapshot(50.0, 7.0))
    assert cost_thresholds.at(50.0) == 7.0, "the clock has gone back"
    assert cost_thresholds.at(last_s) == 0.0


def test_a_replay_tells_where_the_threshold_stood():
    found = looked(RED, window=overload(60.0)).cost_thresholds
    assert [at_s for at_s, _ in found] == sorted(at_s for at_s, _ in found)
    assert min(value for at_s, value in found if 1030.0 < at_s < 1060.0) > 0.0
    assert looked(Candidate(policy="edf"), window=overload(60.0)).cost_thresholds == ()
    assert not any(value for _, value in looked(RED, window=overload(60.0, rate=2.0)).cost_thresholds)


@pytest.mark.slow
def test_begun_where_it_stood_a_replay_of_the_end_comes_to_what_the_whole_came_to():
    window = overload()
    cut_s = 1180.0
    whole = looked(RED, window=window, from_s=cut_s, until_s=1240.0)
    stood = min((value for at_s, value in whole.cost_thresholds if abs(at_s - cut_s) < 4.0), default=0.0)
    assert stood > 0.0
    end = [one for one in window if one.request.arrival_s >= cut_s - 15.0]
    cold, warm = (looked(RED, window=end, from_s=cut_s, until_s=1240.0, cost_threshold=cost_threshold) for cost_threshold in (0.0, stood))
    assert warm.cost_thresholds[0][1] == pytest.approx(stood, rel=0.3)
    assert abs(warm.good - whole.good) < 0.6 * abs(cold.good - whole.good)
    early = [fmean(value for at_s, value in one.cost_thresholds if at_s < cut_s) for one in (cold, warm)]
    assert early[0] != pytest.approx(early[1], rel=0.05)


def test_the_twin_begins_where_the_gateway_stood_or_else_where_its_own_replay_did():
    window = overload(150.0)
    twin, now_s = twin_of(window)
    question = of_type(Question, twin.question([RED], float("-inf"), now_s))
    assert question.world.cost_threshold == 0.0
    first_s = question.world.asked[0].request.arrival_s
    twin.take(question.answer())
    later = of_type(Question, twin.question([RED], float("-inf"), now_s + 10.0))
    assert later.world.cost_threshold == twin.cost_thresholds.at(now_s + 10.0) > 0.0
    assert later.cost_threshold_then == twin.cost_thresholds.at(later.world.asked[0].request.arrival_s)
    for second in range(int(first_s) - 1, int(now_s) + 1):
        twin.cost_thresholds.observe(snapshot(float(second), 321.0 if second < now_s - 10 else 456.0))
    found = of_type(Question, twin.question([RED], float("-inf"), now_s))
    assert (found.cost_threshold_then, found.world.cost_threshold) == (321.0, 456.0)


@pytest.mark.slow
def test_what_is_held_against_the_truth_began_as_the_truth_did():
    twin, now_s = twin_of(overload(150.0))
    question = of_type(Question, twin.question([RED], float("-inf"), now_s))
    cold = replace(question, world=replace(question.world, cost_threshold=0.0), cost_threshold_then=0.0).answer()
    warm = replace(question, world=replace(question.world, cost_threshold=400.0), cost_threshold_then=0.0).answer()
    assert warm.check == cold.check
    assert warm.outlooks[0].good != cold.outlooks[0].good
