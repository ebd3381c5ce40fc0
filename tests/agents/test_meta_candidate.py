"""Candidates: what is in force, and what lies next to it."""

import pytest

from hmas.agents.meta.candidate import STEP, Candidate
from hmas.controller.scheduling.policies.registry import GUARD, POLICIES, check_parameters


def labels(one: Candidate) -> set[str]:
    return {neighbour.label for neighbour in one.neighbours()}


def test_amounts_are_stepped_and_shares_switches_and_what_is_off_are_not():
    assert labels(Candidate(policy="robust-edf")) == {"robust-edf(output_weight=5)", "robust-edf(output_weight=0.8)"}
    assert labels(Candidate(policy="sjf")) == {"sjf(aging_ms_per_s=50)", "sjf(aging_ms_per_s=8)"}
    assert labels(Candidate(policy="fcfs")) == labels(Candidate(policy="wfq")) == labels(Candidate(policy="two-lane")) == set()
    assert Candidate(policy="two-lane", parameters={"threshold_ms": 100.0}).neighbours()[0].parameters == {"threshold_ms": 250.0}


def test_a_step_back_is_the_policy_as_it_comes():
    away = Candidate(policy="robust-edf", parameters={"output_weight": 2.0 * STEP, GUARD: 0.5}, n_run=32)
    assert Candidate(policy="robust-edf", parameters={GUARD: 0.5}, n_run=32) in away.neighbours()


@pytest.mark.parametrize("name", POLICIES)
def test_neighbours_stay_in_range(name):
    highest = {parameter: high for parameter, (_, high) in POLICIES[name].parameter_ranges.items()}
    for parameters in ({}, highest):
        for one in Candidate(policy=name, parameters=parameters).neighbours():
            check_parameters(one.policy, one.parameters)
