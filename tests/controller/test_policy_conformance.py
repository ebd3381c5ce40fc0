"""Every policy of the pool keeps what every policy has to, and hands out in the order of a slow second implementation of itself."""

import os
import subprocess
import sys
from typing import cast

import pytest
from reference_policies import REFERENCES

from hmas.controller.scheduling.policies.fcfs import Fcfs
from hmas.controller.scheduling.policies.registry import BUILT_IN, POLICIES, make_policy
from hmas.controller.scheduling.policies.wfq import Wfq
from hmas.controller.scheduling.policy_base.queue_entry import QueuePolicy
from hmas.testing import CHECKS, NonConformance, assert_conforms
from hmas.testing.conformance import QUEUED, Subject
from hmas.testing.queue_script import QueueScript

NAMES = [policy.name for policy in BUILT_IN]
FEW = 40
"""Queued at a switch, where the structures themselves are what is tested; `test_a_switch_of_many` has more."""


def test_the_pool_is_the_one_that_was_promised():
    promised = "fcfs edf robust-edf llf sjf srtf two-lane wfq stride lottery cfs rr mlfq priority vtc slack"
    # Other tests of this process may have added theirs.
    assert sorted(policy.name for policy in BUILT_IN) == sorted(promised.split())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS)
def test_every_policy_conforms(name, check):
    CHECKS[check](Subject(POLICIES[name], queued=FEW))


@pytest.mark.parametrize("name", ["lottery", "mlfq", "wfq"])
def test_a_switch_of_many_while_requests_come_and_go(name):
    CHECKS["switches"](Subject(POLICIES[name], queued=QUEUED, seed=7))


@pytest.mark.parametrize("case", REFERENCES)
def test_the_order_is_that_of_the_reference(case):
    name, parameters, reference = REFERENCES[case]
    for seed in (3, 4):
        policy, slow = QueueScript(make_policy(name, parameters), seed), QueueScript(reference(), seed)
        policy.run(300)
        slow.run(300)
        assert policy.order == slow.order


def test_the_references_differ_so_that_a_policy_can_fail_its_own():
    orders = set()
    for _, _, reference in REFERENCES.values():
        script = QueueScript(reference(), 3)
        script.run(300)
        orders.add(tuple(script.order))
    assert len(orders) == len(REFERENCES)


@pytest.mark.slow
def test_the_order_depends_on_no_hash_seed():
    code = (
        "from hmas.testing import order_of\n"
        "from hmas.controller.scheduling.policies.registry import BUILT_IN\n"
        "print([order_of(p) for p in BUILT_IN])"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in ("1", "2")
    ]
    first, second = (run.communicate()[0] for run in runs)
    assert first == second
    assert first.count("'") == 2 * len(BUILT_IN)


# -- the suite finds what is wrong: policies with one fault each ---------------------------------------------------------------


class Forgetful(Fcfs):
    """Loses a request that is re-keyed."""

    name = "forgetful"

    def rekey(self, entry, now_s):
        self.discard(entry.request.id)


class Doubling(Fcfs):
    """Keeps what it has handed out."""

    name = "doubling"

    def pop(self, now_s):
        entry = super().pop(now_s)
        if entry is not None and entry.seq % 50 == 49:
            self.push(entry, now_s)
        return entry


class Charging(Wfq):
    """Charges for what was put back."""

    name = "charging"

    def undo_pop(self, entry, now_s):
        self.push(entry, now_s)


class Fickle(Fcfs):
    """Orders by where objects happen to lie."""

    name = "fickle"
    made = 0

    def __init__(self, parameters):
        super().__init__(parameters)
        type(self).made += 1

    def key(self, entry):
        return float(entry.seq * 7919 % (97 + self.made))


class Unfair(Fcfs):
    """Last come, first served, and says nothing of it."""

    name = "unfair"

    def key(self, entry):
        return -float(entry.seq)


class Leaking(Fcfs):
    """Loses one in a hundred when it takes a queue over."""

    name = "leaking"

    def load(self, entries, now_s):
        super().load((entry for entry in entries if entry.seq % 50 != 49), now_s)


@pytest.mark.parametrize(
    ("policy", "check", "words"),
    [
        (Forgetful, "conservation", "len is"),
        (Doubling, "conservation", "len is"),
        (Charging, "undo_pop", "after pops that were put back"),
        (Fickle, "determinism", "another order"),
        (Unfair, "starvation", "times in a row"),
        (Leaking, "rebuild", "load took 50"),
    ],
)
def test_the_suite_finds_a_fault(policy, check, words):
    with pytest.raises(NonConformance, match=words):
        CHECKS[check](Subject(policy))


def test_the_suite_stops_at_the_contract():
    with pytest.raises(NonConformance, match=r"contract: builtins\.dict is no policy; allowed: a class that derives from"):
        assert_conforms(cast("type[QueuePolicy]", dict))
