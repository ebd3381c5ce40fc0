"""What every policy of the pool has to keep, and the order each promises, against a brute-force reference."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.errors import PolicyError
from controller.core.types import Estimates, Request, Slo
from controller.scheduling.pool import POLICIES, make_policy, rebuild
from controller.scheduling.queue_entry import QueueEntry

NAMES = sorted(POLICIES)
TENANTS = ("a", "b", "c")


def entry(
    seq: int, *, tenant: str = "a", ttft_ms: float = 4000, output: float = 100, prompt: int = 100, tpot_ms: float = 50, weight: float = 1.0
):
    return QueueEntry(
        request=Request(id=f"{seq:06d}", tenant=tenant, model="m", arrival_s=1000.0 + seq * 0.01, prompt_tokens=prompt),
        estimates=Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms), output_tokens=output, ttft_ms=prompt * 0.2, tpot_ms=20.0),
        seq=seq,
        weight=weight,
    )


entries = st.lists(
    st.builds(
        dict,
        tenant=st.sampled_from(TENANTS),
        ttft_ms=st.sampled_from([500.0, 2000.0, 9000.0]),
        output=st.sampled_from([5.0, 100.0, 900.0]),
        prompt=st.integers(1, 4000),
    ),
    min_size=1,
    max_size=40,
).map(lambda rows: [entry(i, **row) for i, row in enumerate(rows)])


def drain(policy) -> list[QueueEntry]:
    out = []
    while (popped := policy.pop(2000.0)) is not None:
        out.append(popped)
    assert len(policy) == 0
    return out


def ids(items) -> list[str]:
    return [item.request.id for item in items]


@pytest.mark.parametrize("name", NAMES)
@given(items=entries)
def test_everything_comes_out_once(name, items):
    policy = make_policy(name)
    for item in items:
        policy.push(item, 1000.0)
    assert len(policy) == len(items)
    assert sorted(ids(policy.entries())) == sorted(ids(items))
    assert sorted(ids(drain(policy))) == sorted(ids(items))


@pytest.mark.parametrize("name", NAMES)
@given(items=entries, data=st.data())
def test_put_back_leaves_the_order_as_it_was(name, items, data):
    plain, probed = make_policy(name), make_policy(name)
    for item in items:
        plain.push(item, 1000.0)
        probed.push(item, 1000.0)
    expected = ids(drain(plain))
    seen = []
    while len(probed):
        for _ in range(data.draw(st.integers(0, 2))):
            back = probed.pop(1001.0)
            probed.put_back(back, 1001.0)
        seen.append(probed.pop(1001.0).request.id)
    assert seen == expected


@pytest.mark.parametrize("name", NAMES)
@given(items=entries, data=st.data())
def test_removal_by_id(name, items, data):
    policy = make_policy(name)
    for item in items:
        policy.push(item, 1000.0)
    gone = data.draw(st.sets(st.sampled_from(ids(items))))
    for request_id in sorted(gone):
        assert policy.discard(request_id).request.id == request_id
        assert policy.discard(request_id) is None
    assert sorted(ids(drain(policy))) == sorted(set(ids(items)) - gone)


@pytest.mark.parametrize(("old", "new"), list(permutations(NAMES, 2)))
def test_a_switch_in_the_middle_loses_nothing(old, new):
    items = [entry(i, tenant=TENANTS[i % 3], output=10.0 + 37 * (i % 7), ttft_ms=500.0 + 900 * (i % 4)) for i in range(50)]
    policy = make_policy(old)
    for item in items:
        policy.push(item, 1000.0)
    first = [policy.pop(1000.5) for _ in range(11)]
    rest = drain(rebuild(policy, make_policy(new), 1001.0))
    assert sorted(ids(first) + ids(rest)) == ids(items)


@pytest.mark.parametrize("name", NAMES)
@given(items=entries)
def test_rekey_moves_and_keeps_one(name, items):
    policy, fresh = make_policy(name), make_policy(name)
    for item in items:
        policy.push(item, 1000.0)
    changed = items[-1]
    changed.estimates = Estimates(slo=Slo(ttft_ms=100, tpot_ms=50), output_tokens=1.0, ttft_ms=1.0, tpot_ms=1.0)
    policy.rekey(changed, 1000.5)
    out = ids(drain(policy))
    assert sorted(out) == sorted(ids(items))
    if name in {"edf", "sjf"}:
        for item in items:
            fresh.push(item, 1000.0)
        assert out == ids(drain(fresh))


REFERENCE = {
    "fcfs": lambda e: (0.0, e.seq),
    "edf": lambda e: (e.ttft_deadline_s, e.seq),
    "sjf": lambda e: (e.estimates.total_ms + 20.0 * e.request.arrival_s, e.seq),
}


@pytest.mark.parametrize("name", sorted(REFERENCE))
@given(items=entries)
def test_order_is_the_reference(name, items):
    policy = make_policy(name)
    for item in items:
        policy.push(item, 1000.0)
    assert ids(drain(policy)) == ids(sorted(items, key=REFERENCE[name]))


@given(items=entries)
def test_two_lane_orders_each_lane_by_slack(items):
    policy = make_policy("two-lane", {"threshold_ms": 2500.0})
    for item in items:
        policy.push(item, 1000.0)
    out = drain(policy)
    for slow in (False, True):
        lane = [e for e in out if (e.estimates.total_ms > 2500.0) is slow]
        assert ids(lane) == ids(sorted(lane, key=lambda e: (e.deadline_s - e.estimates.total_ms / 1000.0, e.seq)))


def test_two_lane_starves_neither_lane():
    policy = make_policy("two-lane", {"threshold_ms": 2500.0, "fast_share": 0.8})
    for i in range(200):
        policy.push(entry(i, output=900.0 if i % 2 else 5.0), 1000.0)
    first = [policy.pop(1001.0) for _ in range(50)]
    assert 8 <= sum(e.estimates.total_ms > 2500.0 for e in first) <= 12


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0)])
def test_wfq_shares_by_weight(weights):
    policy = make_policy("wfq")
    for i in range(400):
        tenant = TENANTS[i % 2]
        policy.push(entry(i, tenant=tenant, weight=weights[i % 2]), 1000.0)
    first = [policy.pop(1001.0).request.tenant for _ in range(120)]
    share = weights[0] / sum(weights)
    assert first.count("a") == pytest.approx(120 * share, abs=2)


def test_wfq_gives_no_credit_for_a_pause():
    policy = make_policy("wfq")
    for i in range(100):
        policy.push(entry(i, tenant="a"), 1000.0)
    for _ in range(50):
        policy.pop(1001.0)
    for i in range(100, 200):
        policy.push(entry(i, tenant="b"), 1002.0)
    first = [policy.pop(1003.0).request.tenant for _ in range(20)]
    assert 9 <= first.count("b") <= 11


@pytest.mark.parametrize(
    ("name", "hints", "word"),
    [
        ("lifo", None, "fcfs"),
        ("edf", {"nope": 1.0}, "key"),
        ("two-lane", {"fast_share": 2.0}, "0.05"),
        ("sjf", {"aging_ms_per_s": float("nan")}, "number"),
    ],
)
def test_unknown_names_and_hints_are_refused_with_what_is_allowed(name, hints, word):
    with pytest.raises(PolicyError, match=word):
        make_policy(name, hints)
