"""The heap under the policies: right against a plain reference, bounded in garbage, logarithmic by count of its moves."""

import math

import pytest
from heap_kit import HeapWork
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import known

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.policies.edf import Edf
from hmas.controller.scheduling.policies.wfq import Wfq
from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

steps = st.lists(st.tuples(st.sampled_from(["push", "pop", "discard", "peek"]), st.integers(0, 9), st.integers(0, 5)), max_size=80)


@given(steps)
def test_the_heap_does_what_a_sorted_table_does(script):
    heap: LazyHeap[str] = LazyHeap()
    table: dict[str, tuple[int, int]] = {}
    for tie, (step, number, key) in enumerate(script):
        name = f"id{number}"
        lowest = min(table, key=lambda one: table[one], default=None)
        if step == "push":
            heap.push(name, float(key), tie, name)
            table[name] = (key, tie)
        elif step == "pop":
            assert heap.pop() == lowest
            if lowest is not None:
                del table[lowest]
        elif step == "discard":
            assert heap.discard(name) == (name if table.pop(name, None) else None)
        else:
            assert (heap.peek() or (0.0, None))[1] == lowest
        assert len(heap) == len(table)
        assert set(heap.values()) == set(table)
    for name, place in table.items():
        assert heap.rank(name) == sum(other < place for other in table.values())
        assert name in heap
        assert heap.get(name) == name


def test_rekeying_leaves_bounded_garbage_and_costs_little(heap_work: HeapWork):
    heap: LazyHeap[int] = LazyHeap()
    for i in range(1000):
        heap.push(str(i), float(i), i, i)
    before = heap_work.moves
    for turn in range(20):
        for i in range(1000):
            heap.push(str(i), float((i * 7919 + turn) % 1000), i, i)
    assert heap_work.places <= 2 * 1000 + 64
    # Each of the 20,000 pushes writes one place; the rebuilds together rewrite a bounded number of places per push.
    assert heap_work.moves - before <= 3 * 20_000
    assert [heap.pop() for _ in range(1000)] != [None] * 1000
    assert heap.pop() is None


def test_removed_places_are_swept_out(heap_work: HeapWork):
    heap: LazyHeap[int] = LazyHeap()
    for i in range(5000):
        heap.push(str(i), float(-i), i, i)
    for i in range(4990):
        heap.discard(str(i))
    assert heap_work.places <= 2 * 10 + 64


def test_loading_is_the_same_as_pushing():
    one, other = LazyHeap[int](), LazyHeap[int]()
    items = [(str(i), float(i * 31 % 17), i, i) for i in range(100)]
    for item in items:
        one.push(*item)
    other.load(items)
    assert [one.pop() for _ in items] == [other.pop() for _ in items]


def made(seq, tenant="a", prompt=10, priority=0, weight=1.0):
    request = Request(id=f"{seq:05d}", tenant=tenant, model="m", arrival_s=float(seq), prompt_tokens=prompt, priority=priority)
    return QueueEntry(request=request, estimates=Estimates(slo=Slo(ttft_ms=1000, tpot_ms=50), output_tokens=10.0), seq=seq, weight=weight)


def test_a_pop_of_a_large_queue_costs_a_constant_number_of_moves(heap_work: HeapWork):
    policy = Edf({"key": 0.0})
    policy.load([made(i) for i in range(10_000)], 0.0)
    before = heap_work.moves
    for _ in range(100):
        policy.pop(0.0)
    assert heap_work.moves - before == 100


def test_priority_is_an_offset_that_waiting_makes_up_for():
    policy = Edf({"key": 0.0})
    for entry in (made(0, priority=3), made(2), made(4), made(6, priority=-100_000)):
        policy.push(entry, 0.0)
    # Three steps are three seconds; a claim beyond 100 steps counts as 100.
    assert [known(policy.pop(0.0)).seq for _ in range(4)] == [6, 2, 0, 4]


def test_a_priority_can_put_off_by_100_steps_only():
    policy = Edf({"key": 0.0})
    for entry in (made(0, priority=10**6), made(99), made(150)):
        policy.push(entry, 0.0)
    assert [known(policy.pop(0.0)).seq for _ in range(3)] == [99, 0, 150]


def test_edf_by_the_whole_deadline_on_demand():
    short, long = made(1), made(0)
    long.estimates = Estimates(slo=Slo(ttft_ms=1000, tpot_ms=50), output_tokens=1000.0)
    for key, first in ((0.0, 0), (1.0, 1)):
        policy = Edf({"key": key})
        policy.push(long, 0.0)
        policy.push(short, 0.0)
        assert known(policy.pop(0.0)).seq == first


def test_wfq_orders_within_a_tenant_by_priority_and_forgets_idle_tenants():
    policy = Wfq({"cost": 0.0})
    for entry in (made(0, priority=1), made(1), made(2, priority=-1)):
        policy.push(entry, 0.0)
    assert [known(policy.pop(0.0)).seq for _ in range(3)] == [2, 1, 0]
    policy.push(made(3, tenant="stays", prompt=10**9), 0.0)
    policy.push(made(4, tenant="stays"), 0.0)
    for i in range(20_000):
        policy.push(made(10 + i, tenant=f"t{i}"), 0.0)
        policy.pop(0.0)
    assert len(policy.idle) == 4096
    assert len(policy.busy) == 2
    assert len(policy.charges) == 16_384


@pytest.mark.parametrize("cost", [0.0, 1.0])
def test_a_new_weight_counts_from_the_next_dispatch(cost):
    policy = Wfq({"cost": cost})
    for i in range(200):
        policy.push(made(i, tenant="ab"[i % 2]), 0.0)
    assert [known(policy.pop(0.0)).request.tenant for _ in range(20)].count("a") == 10
    for entry in policy.entries():
        entry.weight = 3.0 if entry.request.tenant == "a" else 1.0
    assert math.isclose([known(policy.pop(0.0)).request.tenant for _ in range(40)].count("a"), 30, abs_tol=1)
