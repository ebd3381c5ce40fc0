"""One seeded trace through the simulation and through the live gateway under a virtual clock: the same decisions, entry by entry."""

from collections import Counter

import msgspec
import pytest
from hmas_lab.parity.live import run_live
from hmas_lab.parity.log import Decision, first_difference
from hmas_lab.parity.scenario import Scenario, scenarios
from hmas_lab.parity.simulated import run_simulated

from hmas.controller.scheduling.policies.registry import POLICIES


def assert_equal(simulated: list[Decision], live: list[Decision]) -> None:
    at = first_difference(simulated, live)
    if at is not None:
        near = slice(max(0, at - 3), at + 3)
        shown = "\n".join(f"simulated {one}\nlive      {other}" for one, other in zip(simulated[near], live[near], strict=False))
        pytest.fail(f"entry {at} of {len(simulated)} and {len(live)}:\n{shown}")


def test_a_short_trace_is_decided_alike():
    scenario = Scenario(policy="edf", then="two-lane", requests=60, seed=3)
    assert_equal(run_simulated(scenario), run_live(scenario))


EACH_ONCE = [scenario for place, scenario in enumerate(scenarios(sorted(POLICIES), seed=2)) if place % 3 == place // 3 % 3]
"""Every policy with one treatment of overdue requests, by turns; `hmas-lab parity` runs them with all three. With seed 1 a request is
relieved on the very moment of an engine's report, where the order is chance."""


@pytest.mark.slow
@pytest.mark.parametrize("scenario", EACH_ONCE, ids=lambda s: f"{s.policy}-{s.overdue}")
@pytest.mark.parametrize("requests", [350, pytest.param(600, marks=pytest.mark.long)])
def test_every_policy_is_decided_alike(scenario: Scenario, requests: int):
    scenario = msgspec.structs.replace(scenario, requests=requests)
    simulated = run_simulated(scenario)
    assert_equal(simulated, run_live(scenario))
    kinds = Counter(entry.kind for entry in simulated)
    assert sum(number for kind, number in kinds.items() if kind != "dispatched") == requests
    assert kinds["completed"] >= 0.2 * requests
    assert {entry.instance for entry in simulated if entry.kind == "dispatched"} == {"fast", "slow"}
    assert {entry.policy for entry in simulated if entry.kind == "dispatched"} == {scenario.policy, scenario.then}


OTHER_SETTINGS = {
    # The pace is learned from streams beside them, or from the engines' counters alone.
    "half-whole": Scenario(policy="edf", then="robust-edf", seed=4, requests=300, rate=12.0, whole=0.5),
    "broken-off": Scenario(policy="edf", then="robust-edf", seed=7, requests=300, rate=14.0, whole=0.7, timeout_s=1.2, tpot_guard=0.7),
    "all-whole": Scenario(policy="edf", then="robust-edf", seed=5, requests=300, rate=12.0, whole=1.0),
    # Five requests leave together with the one that is being admitted: they have to reach the engine in that order.
    "fast-tick": Scenario(policy="fcfs", then="sjf", seed=839684, requests=519, tick_s=0.02, queue_limit=60, tpot_guard=0.3),
    # Several requests are in one engine's front end at the same moment.
    "front-end": Scenario(
        policy="fcfs", seed=488283, requests=295, tick_s=0.02, tpot_guard=0.0, timeout_s=2.5, routing="round-robin", overdue="demote"
    ),
    "no-guard": Scenario(policy="wfq", then="fcfs", overdue="keep", seed=11, requests=500, tpot_guard=0.0, rate=40.0, timeout_s=60.0),
    "hasty": Scenario(policy="sjf", then="edf", overdue="shed", seed=12, requests=500, late_service_share=1.0, timeout_s=1.0),
    # Most are refused: a refusal is no reason to look at the queue.
    "short-queue": Scenario(
        policy="two-lane",
        then="sjf",
        overdue="keep",
        seed=159738,
        requests=514,
        queue_limit=20,
        tpot_guard=0.3,
        timeout_s=60.0,
        routing="round-robin",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", OTHER_SETTINGS.values(), ids=list(OTHER_SETTINGS))
def test_other_settings_are_decided_alike(scenario: Scenario):
    simulated = run_simulated(scenario)
    assert_equal(simulated, run_live(scenario))
    assert len(simulated) > scenario.requests


def test_a_difference_is_found_where_it_is():
    log = run_simulated(Scenario(requests=40))
    other = run_simulated(Scenario(requests=40, tpot_guard=0.0, timeout_s=0.3))
    at = first_difference(log, other)
    assert at is not None
    assert log[:at] == other[:at]
    assert log[at] != other[at]
    assert first_difference(log, log) is None
    assert first_difference(log, log[:-1]) == len(log) - 1
