"""Policies that share turns, where requests are taken out and put back, and tenants closed and opened, as planning passes do."""

import pytest
from test_policy_bounds import START_S, made
from typing_kit import known

from hmas.controller.scheduling.dispatch import BARRED_MOST, LOOK_AHEAD
from hmas.controller.scheduling.policies.registry import make_policy
from hmas.controller.scheduling.policy_base.flow_policy import FlowPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


def test_what_is_passed_under_stride_does_not_hold_back_a_tenant_that_comes():
    policy = make_policy("stride")
    for seq in range(200):
        policy.push(made(seq, tenant="ab"[seq % 2]), START_S)
    for _ in range(40):
        passed = known(policy.pop(START_S))
        policy.pop(START_S)
        policy.undo_pop(passed, START_S)
        policy.pop(START_S)
    policy.push(made(200, tenant="c"), START_S)
    assert "c" in [known(policy.pop(START_S)).request.tenant for _ in range(3)]


def test_a_tenant_that_comes_and_goes_while_others_are_passed_keeps_what_it_had_in_advance_under_stride():
    policy = make_policy("stride")
    for seq in range(100):
        policy.push(made(seq, tenant="ad"[seq % 2]), START_S)
    for seq in range(100, 140):
        policy.push(made(seq, tenant="b"), START_S)
        passed: list[QueueEntry] = []
        while (entry := known(policy.pop(START_S))).request.tenant != "b":
            passed.append(entry)
        for entry in reversed(passed):
            policy.undo_pop(entry, START_S)
    for seq in range(200, 300):
        policy.push(made(seq, tenant="b"), START_S)
    # It has had forty turns, and the others none.
    assert "b" not in [known(policy.pop(START_S)).request.tenant for _ in range(60)]


@pytest.mark.parametrize("name", ["wfq", "vtc", "stride"])
@pytest.mark.parametrize("others", [0, 1])
def test_a_tenant_that_is_closed_and_opened_in_each_pass_stays_where_it_is(name, others):
    policy = make_policy(name)
    assert isinstance(policy, FlowPolicy)
    for seq in range(40):
        policy.push(made(seq, tenant="fg"[seq % (1 + others)]), START_S)
    for _ in range(6):
        policy.pop(START_S)
    before = policy.busy["f"].tag
    for _ in range(100):
        passed = known(policy.pop(START_S))
        assert passed.request.tenant == "f"
        policy.close_tenant("f", START_S)
        other = policy.pop(START_S)
        if other is not None:
            policy.undo_pop(other, START_S)
        policy.undo_pop(passed, START_S)
        policy.open_tenant("f", START_S)
    assert policy.busy["f"].tag == pytest.approx(before)


def test_a_tenant_that_was_closed_for_long_has_no_claim_under_stride():
    for leaves in (True, False):
        policy = make_policy("stride")
        for seq in range(100):
            policy.push(made(seq, tenant="fg"[seq % 2]), START_S)
        policy.close_tenant("f", START_S)
        for _ in range(40):
            assert known(policy.pop(START_S)).request.tenant == "g"
        if leaves:
            for seq in range(0, 100, 2):
                policy.discard(f"{seq:06d}")
        policy.open_tenant("f", START_S)
        for seq in range(100, 200):
            policy.push(made(seq, tenant="fg"[seq % 2]), START_S)
        assert [known(policy.pop(START_S)).request.tenant for _ in range(20)].count("f") <= 11


def test_two_lane_takes_back_all_that_a_planning_pass_takes_out():
    policy = make_policy("two-lane", {"threshold_ms": 2500.0, "fast_share": 0.617})
    for seq in range(2 * BARRED_MOST):
        policy.push(made(seq, output=900.0 if seq % 2 else 5.0), START_S)
    orders: list[list[int]] = []
    for _ in range(2):
        out = [known(policy.pop(START_S)) for _ in range(BARRED_MOST + LOOK_AHEAD)]
        orders.append([entry.seq for entry in out])
        for entry in reversed(out):
            policy.undo_pop(entry, START_S)
    assert orders[0] == orders[1]
