"""What each policy states about waiting and sharing, held to its figures."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from typing_kit import known

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.policies.registry import make_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.testing.queue_script import QueueScript, make_entry

START_S = 1000.0


def made(seq, *, tenant="a", session="", prompt=100, output=100.0, priority=0, weight=1.0, at_s=None, ttft_slo_ms=4000.0):
    arrival_s = START_S + seq * 0.01 if at_s is None else at_s
    request = Request(
        id=f"{seq:06d}", tenant=tenant, session=session, model="m", arrival_s=arrival_s, prompt_tokens=prompt, priority=priority
    )
    estimates = Estimates(slo=Slo(ttft_ms=ttft_slo_ms, tpot_ms=50.0), output_tokens=output, ttft_ms=prompt * 0.2, tpot_ms=20.0)
    return QueueEntry(request=request, estimates=estimates, seq=seq, weight=weight)


def drain(policy, now_s=2000.0):
    out = []
    while (entry := policy.pop(now_s)) is not None:
        out.append(entry)
    return out


def mixed(count, seed=1):
    rng = np.random.default_rng(seed)
    return [make_entry(number, START_S + number * 3.0, rng) for number in range(count)]


# -- by key: who may pass whom -------------------------------------------------------------------------------------------------


def ahead_s(name, one, other):
    """How long after `one` `other` may come at most and still pass it, by what the policy states."""
    steps = one.request.priority - other.request.priority
    if name == "fcfs":
        return 0.0
    if name == "priority":
        return 30.0 * steps
    if name == "sjf":
        return (one.estimates.total_ms - other.estimates.total_ms + 1000.0 * steps) / 20.0
    due_s = {"edf": one.ttft_deadline_s, "llf": one.ttft_deadline_s - one.estimates.ttft_ms / 1000.0}[name]
    other_s = 0.0 if name == "edf" else other.estimates.ttft_ms / 1000.0
    return due_s + steps + other_s - one.request.arrival_s


@pytest.mark.parametrize("name", ["fcfs", "edf", "llf", "sjf", "priority"])
def test_nobody_is_passed_by_those_who_come_too_late(name):
    policy = make_policy(name)
    for entry in mixed(150):
        policy.push(entry, START_S)
    out = drain(policy)
    passed = [(one, other) for i, other in enumerate(out) for one in out[i + 1 :] if one.seq < other.seq]
    assert bool(passed) == (name != "fcfs")
    for one, other in passed:
        assert other.request.arrival_s - one.request.arrival_s <= ahead_s(name, one, other) + 1e-6


def test_priority_classes_are_strict_until_a_class_is_waited_for():
    policy = make_policy("priority", {"aging_s": 30.0})
    for seq, (at_s, priority) in enumerate([(0.0, 2), (10.0, 1), (39.0, 0), (41.0, 0), (59.0, 0), (61.0, 0), (61.0, -1)]):
        policy.push(made(seq, at_s=at_s, priority=priority), at_s)
    assert [entry.seq for entry in drain(policy)] == [6, 2, 1, 3, 4, 0, 5]


def test_llf_puts_the_longer_prefill_first_where_edf_sees_no_difference():
    short, long = made(0, prompt=10, at_s=0.0), made(1, prompt=4000, at_s=0.0)
    for name, first in (("edf", 0), ("llf", 1)):
        policy = make_policy(name)
        for entry in (short, long):
            policy.push(entry, 0.0)
        assert known(policy.pop(0.0)).seq == first


def test_slack_counts_what_the_pace_has_to_spare_and_llf_does_not():
    """20 ms of 50 are needed a token: 1000 tokens have 30 s more to spare than 1 has."""
    long, short = made(0, output=1000.0, at_s=0.0), made(1, output=1.0, at_s=1.0)
    for name, first in (("llf", 0), ("slack", 1)):
        policy = make_policy(name)
        for entry in (long, short):
            policy.push(entry, 0.0)
        assert known(policy.pop(0.0)).seq == first


def test_srtf_is_sjf_without_aging_until_somebody_comes_back_to_a_shared_cache():
    entries = mixed(80)
    orders = []
    for name, parameters in (("sjf", {"aging_ms_per_s": 0.0}), ("srtf", {}), ("srtf", {"kept_prefill": 1.0})):
        policy = make_policy(name, parameters)
        for entry in entries:
            policy.push(entry, START_S)
        orders.append([entry.seq for entry in drain(policy)])
    assert orders[0] == orders[1] == orders[2]
    policy = make_policy("srtf", {"kept_prefill": 1.0})
    fresh, back = made(0, prompt=100, output=10.0), made(1, prompt=1000, output=10.0)
    back.tried = frozenset({"i0"})
    for entry in (fresh, back):
        policy.push(entry, START_S)
    assert known(policy.pop(START_S)).seq == 1, "0.2 s of decoding are left of it, of the other 0.22 s"


# -- by flow: who gets how much ------------------------------------------------------------------------------------------------

COST = {
    "wfq": lambda entry: entry.request.prompt_tokens + entry.estimates.output_tokens,
    "vtc": lambda entry: entry.request.prompt_tokens + 2.0 * entry.estimates.output_tokens,
    "cfs": lambda entry: entry.estimates.total_ms,
    "stride": lambda entry: 1.0,
}


@pytest.mark.parametrize("name", COST)
@pytest.mark.parametrize("seed", [1, 2])
def test_two_that_wait_get_service_by_weight_to_one_request_of_each(name, seed):
    rng = np.random.default_rng(seed)
    weights = {"a": 0.5, "b": 1.0, "c": 4.0}
    policy = make_policy(name, {"by": 0.0} if name == "cfs" else None)
    for seq in range(240):
        tenant = "abc"[int(rng.integers(3))]
        policy.push(
            made(seq, tenant=tenant, prompt=int(rng.integers(1, 4000)), output=float(rng.integers(1, 900)), weight=weights[tenant]), 0.0
        )
    left = {tenant: sum(entry.request.tenant == tenant for entry in policy.entries()) for tenant in weights}
    largest = max(COST[name](entry) for entry in policy.entries())
    debit = 1000.0 if name == "cfs" else 0.0
    served = dict.fromkeys(weights, 0.0)
    while all(left.values()):
        entry = known(policy.pop(0.0))
        tenant = entry.request.tenant
        left[tenant] -= 1
        served[tenant] += COST[name](entry) / weights[tenant]
        for one, other in permutations(weights, 2):
            assert served[one] - served[other] <= (largest + debit) * (1 / weights[one] + 1 / weights[other]) + 1e-6


@pytest.mark.parametrize("name", ["wfq", "vtc", "cfs"])
def test_a_wrong_prediction_is_put_right_when_its_request_ends(name):
    policy = make_policy(name, {"by": 0.0} if name == "cfs" else None)
    for seq in range(400):
        tenant = "ab"[seq % 2]
        policy.push(made(seq, tenant=tenant, output=1.0 if tenant == "a" else 1000.0), START_S)
    service = {"a": 0.0, "b": 0.0}
    for _ in range(120):
        entry = known(policy.pop(START_S))
        service[entry.request.tenant] += entry.request.prompt_tokens + 500.0
        policy.on_finished(entry, 500, START_S)
    assert service["a"] == pytest.approx(service["b"], rel=0.1), "all are 500 tokens long in truth"


@pytest.mark.parametrize("name", ["wfq", "vtc", "cfs", "rr"])
def test_a_pause_earns_no_credit(name):
    policy = make_policy(name)
    for seq in range(100):
        policy.push(made(seq, tenant="a"), START_S)
    for _ in range(50):
        policy.pop(START_S)
    for seq in range(100, 200):
        policy.push(made(seq, tenant="b"), START_S)
    first = [known(policy.pop(START_S)).request.tenant for _ in range(20)]
    assert 9 <= first.count("b") <= 11


def test_a_quiet_moment_levels_wfq_and_not_vtc():
    for name, first in (("wfq", "a"), ("vtc", "b")):
        policy = make_policy(name)
        policy.push(made(0, tenant="a", prompt=100_000), START_S)
        policy.push(made(1, tenant="b", prompt=10), START_S)
        policy.pop(START_S)
        policy.pop(START_S)
        for seq, tenant in ((2, "c"), (3, "a"), (4, "b")):
            policy.push(made(seq, tenant=tenant), START_S)
        policy.pop(START_S)
        assert known(policy.pop(START_S)).request.tenant == first


def test_stride_remembers_what_a_tenant_had_in_advance_over_a_pause():
    policy = make_policy("stride")
    for seq in range(4):
        policy.push(made(seq, tenant="ab"[seq % 2]), START_S)
    assert [known(policy.pop(START_S)).request.tenant for _ in range(3)] == ["a", "b", "a"]
    policy.push(made(10, tenant="a"), START_S)
    policy.push(made(11, tenant="b"), START_S)
    assert [known(policy.pop(START_S)).request.tenant for _ in range(3)] == ["b", "a", "b"]


def test_tickets_follow_priority_and_weight():
    policy = make_policy("stride")
    for seq in range(300):
        policy.push(made(seq, tenant="abc"[seq % 3], weight=[1.0, 2.0, 1.0][seq % 3], priority=[0, 0, 10][seq % 3]), START_S)
    first = [known(policy.pop(START_S)).request.tenant for _ in range(70)]
    assert [first.count(tenant) for tenant in "abc"] == pytest.approx([20, 40, 10], abs=1)


def test_lottery_shares_as_tickets_do_in_the_mean_and_by_its_seed():
    orders = []
    for seed in (0.0, 0.0, 1.0):
        policy = make_policy("lottery", {"seed": seed})
        for seq in range(6000):
            policy.push(made(seq, tenant="ab"[seq % 2], weight=[3.0, 1.0][seq % 2]), START_S)
        orders.append("".join(known(policy.pop(START_S)).request.tenant for _ in range(3000)))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    for order in orders:
        assert abs(order.count("a") / 3000 - 0.75) < 4 * math.sqrt(0.75 * 0.25 / 3000)
    runs = max(len(run) for run in orders[0].split("a"))
    assert runs > 2, "draws, not turns"


def test_a_win_is_kept_while_others_go_first():
    policy = make_policy("lottery")
    for seq in range(40):
        policy.push(made(seq, tenant="abcd"[seq % 4]), START_S)
    blocked, _ = known(policy.pop(START_S)), policy.pop(START_S)
    for _ in range(5):
        policy.undo_pop(blocked, START_S)
        assert policy.pop(START_S) is blocked
        policy.pop(START_S)


def test_rr_gives_each_other_one_turn_between_two_of_mine():
    script = QueueScript(make_policy("rr"), 5)
    for _ in range(300):
        script.push()
    tenants = [script.waiting[request_id].request.tenant for request_id in script.waiting]
    order = []
    while (entry := script.policy.pop(START_S)) is not None:
        order.append(entry.request.tenant)
    for tenant in set(tenants):
        turns = [i for i, one in enumerate(order) if one == tenant]
        for start, end in pairwise(turns):
            between = order[start + 1 : end]
            assert len(set(between)) == len(between)


def test_mlfq_sinks_by_use_and_a_boost_lifts():
    policy = make_policy("mlfq", {"quantum_tokens": 1000.0, "boost_s": 30.0})
    now_s = 30_000.0
    for seq in range(8):
        policy.push(made(seq, session="heavy", prompt=900, output=300.0), now_s)
    assert known(policy.pop(now_s)).request.session == "heavy"
    for seq in range(10, 14):
        policy.push(made(seq, session=f"new{seq}"), now_s)
    assert [known(policy.pop(now_s)).request.session for _ in range(4)] == ["new10", "new11", "new12", "new13"]
    policy.push(made(20, session="new20"), now_s + 29.0)
    assert known(policy.pop(now_s + 29.0)).request.session == "new20"
    policy.push(made(21, session="new21"), now_s + 30.0)
    assert known(policy.pop(now_s + 30.0)).request.session == "heavy", "who waited at the boost comes before all that come later"
    assert known(policy.pop(now_s + 30.0)).request.session == "new21"


def test_mlfq_forgives_what_was_predicted_too_long():
    policy = make_policy("mlfq", {"quantum_tokens": 1000.0})
    first = made(0, session="s", output=5000.0)
    policy.push(first, START_S)
    policy.push(made(1, session="s"), START_S)
    policy.pop(START_S)
    policy.push(made(2, session="t"), START_S)
    policy.on_finished(first, 10, START_S)
    assert known(policy.pop(START_S)).seq == 1, "110 tokens were used: still on the top level, and before the other"


def test_a_stream_of_new_sessions_cannot_hold_back_an_old_one_under_cfs():
    policy = make_policy("cfs")
    for seq in range(2):
        policy.push(made(seq, session="old", output=1000.0), START_S)
    policy.pop(START_S)
    pops = 0
    while True:
        pops += 1
        policy.push(made(10 + pops, session=f"new{pops}", prompt=1, output=1.0), START_S)
        if known(policy.pop(START_S)).request.session == "old":
            break
    assert pops <= 22, "20 s of service, a debit of 1 s for each new session, and the two at the ends"


def test_two_lane_starves_neither_lane():
    policy = make_policy("two-lane", {"threshold_ms": 2500.0, "fast_share": 0.8})
    for seq in range(200):
        policy.push(made(seq, output=900.0 if seq % 2 else 5.0), START_S)
    first = [known(policy.pop(START_S)) for _ in range(50)]
    assert 8 <= sum(entry.estimates.total_ms > 2500.0 for entry in first) <= 12


def lanes(**parameters: float) -> QueuePolicy:
    """Two lanes, in each of which forty requests wait."""
    policy = make_policy("two-lane", {"threshold_ms": 2500.0, **parameters})
    for seq in range(80):
        policy.push(made(seq, output=900.0 if seq % 2 else 5.0), START_S)
    return policy


def is_slow(entry: QueueEntry) -> bool:
    return entry.estimates.total_ms > 2500.0


def test_gates_make_turns_longer_and_keep_the_shares():
    policy = lanes(gate_ms=1000.0, fast_share=0.7)
    found = [is_slow(known(policy.pop(100.0 + step / 20.0))) for step in range(50)]
    assert found[:20] == 14 * [False] + 6 * [True]
    assert sum(found) == pytest.approx(15, abs=6)


def test_gates_starve_no_lane_whose_dispatches_come_at_their_period():
    policy = lanes(gate_ms=1000.0, fast_share=0.7)
    found = [is_slow(known(policy.pop(100.0 + step))) for step in range(40)]
    assert sum(found) == pytest.approx(12, abs=2)


def test_a_lane_at_its_bound_lets_the_other_go_first():
    policy = lanes(slow_running=2.0)
    first = [known(policy.pop(START_S)) for _ in range(20)]
    assert sum(map(is_slow, first)) == 2
    # A request that ends, or is put back, frees its place.
    ended = next(entry for entry in first if is_slow(entry))
    policy.on_finished(ended, 900, START_S)
    policy.on_finished(ended, 900, START_S)
    assert sum(is_slow(known(policy.pop(START_S))) for _ in range(10)) == 1
    # Nothing waits for its lane once nothing of the other waits.
    rest = [known(policy.pop(START_S)) for _ in range(len(policy))]
    assert [is_slow(entry) for entry in rest] == 13 * [False] + 37 * [True]


def test_a_request_that_is_put_back_holds_no_place_of_its_lane():
    policy = lanes(slow_running=1.0, fast_running=1.0)
    popped = [known(policy.pop(START_S)) for _ in range(2)]
    assert sorted(map(is_slow, popped)) == [False, True]
    slow = next(entry for entry in popped if is_slow(entry))
    policy.push(slow, START_S)
    assert known(policy.pop(START_S)) is slow
    policy.undo_pop(slow, START_S)
    assert known(policy.pop(START_S)) is slow


def test_a_request_that_is_served_out_of_turn_counts_in_its_lane_and_takes_its_turn():
    policy = lanes(slow_running=1.0)
    slow = next(entry for entry in policy.entries() if is_slow(entry))
    assert policy.serve(slow.request.id, START_S) is slow
    assert policy.serve(slow.request.id, START_S) is None
    assert not any(is_slow(known(policy.pop(START_S))) for _ in range(20))
    policy.on_finished(slow, 900, START_S)
    assert any(is_slow(known(policy.pop(START_S))) for _ in range(2))
    unbounded = lanes(fast_share=0.8)
    for entry in [entry for entry in unbounded.entries() if is_slow(entry)][:3]:
        unbounded.serve(entry.request.id, START_S)
    assert not any(is_slow(known(unbounded.pop(START_S))) for _ in range(12)), "three turns of the slow lane are used"
