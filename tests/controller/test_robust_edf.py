"""Robust deadline order: the threshold that it follows, the order that it makes, and what that is worth in an overload."""

import math
import random
from functools import partial

import pytest
from heap_kit import HeapWork
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.core.types import Controls, Estimates, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policies.registry import make_policy
from hmas.controller.scheduling.policies.robust_edf import RobustEdf
from hmas.controller.scheduling.policy_base.cost_threshold import CostThreshold
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas.testing.queue_script import QueueScript

PROFILE = load_profile("a100-qwen3-8b")

# -- the threshold -------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(["arrived", "on_overdue"]), st.floats(1.0, 1e9), st.floats(0.0, 1e4)), max_size=300),
    st.sampled_from([0.001, 0.01, 0.5]),
)
def test_whatever_comes_it_is_off_or_among_the_costs_that_came(steps, late_share):
    cost_threshold, costs, now_s = CostThreshold(late_share), [], 1000.0
    for step, cost, gap_s in steps:
        now_s += gap_s
        if step == "arrived":
            costs.append(cost)
            cost_threshold.arrived(cost, now_s)
        else:
            cost_threshold.on_overdue(cost)
        assert cost_threshold.value == math.inf or min(costs) <= cost_threshold.value <= max(costs)


def test_it_is_off_until_somebody_is_late_and_again_when_nobody_is():
    cost_threshold = CostThreshold(0.01)
    for number in range(200):
        cost_threshold.arrived(100.0 + number, 0.1 * number)
    assert cost_threshold.value == math.inf
    cost_threshold.on_overdue(100.0)
    low = cost_threshold.value
    assert low < 300.0
    for _ in range(20):
        cost_threshold.on_overdue(100.0)
    assert cost_threshold.value < low
    for number in range(20_000):
        cost_threshold.arrived(100.0 + number % 200, 20.0 + 0.1 * number)
    assert cost_threshold.value == math.inf


def test_who_is_above_it_by_now_is_no_news():
    cost_threshold = CostThreshold(0.01)
    for number in range(200):
        cost_threshold.arrived(100.0 + number, 0.1 * number)
    for _ in range(12):
        cost_threshold.on_overdue(100.0)
    before = cost_threshold.value
    for _ in range(1000):
        cost_threshold.on_overdue(1.01 * before)
    assert cost_threshold.value == before


@pytest.mark.slow
@pytest.mark.parametrize("rate", [2.0, 20.0, 2000.0])
def test_it_finds_what_can_be_afforded_whatever_the_rate(rate):
    """Costs are even between 0 and 1000; what is in turn is late, a second later, as far as it comes to more than the work that is done."""
    draw, cost_threshold, waiting, found, now_s = random.Random(3), CostThreshold(0.01), [], [], 0.0
    while now_s < 200.0:
        now_s += draw.expovariate(rate)
        cost = draw.uniform(1.0, 1000.0)
        cost_threshold.arrived(cost, now_s)
        waiting.append((now_s + 1.0, cost))
        while waiting[0][0] <= now_s:
            _, due = waiting.pop(0)
            taken = min(1000.0, cost_threshold.value)
            # Work in turn is taken^2 / 2000 of the mean 500; half of it can be done.
            if draw.random() < 1.0 - 500.0**2 / max(500.0, taken) ** 2:
                cost_threshold.on_overdue(due)
        if now_s > 60.0:
            found.append(min(1000.0, cost_threshold.value))
    assert sum(found) / len(found) == pytest.approx(510.0, rel=0.12)


def test_one_giant_does_not_set_it():
    cost_threshold = CostThreshold(0.01)
    for number in range(300):
        cost_threshold.arrived(1e9 if number == 150 else 100.0 + number, 0.1 * number)
    cost_threshold.on_overdue(100.0)
    assert cost_threshold.value <= 400.0


def test_it_begins_where_it_is_told_to_and_is_bounded_once_costs_are_known():
    cost_threshold = CostThreshold(0.01, start=500.0)
    for number in range(20):
        cost_threshold.arrived(10.0 + number, 0.1 * number)
    assert cost_threshold.value == pytest.approx(500.0, rel=0.02)
    cost_threshold.on_overdue(20.0)
    assert 400.0 < cost_threshold.value < 500.0
    for number in range(100):
        cost_threshold.arrived(10.0 + number % 40, 2.0 + 0.1 * number)
    assert cost_threshold.value == math.inf, "above what any of them costs"


def test_those_that_come_at_one_moment_are_worth_as_much_as_when_they_come_one_by_one():
    found = []
    for batch in (1, 10):
        cost_threshold = CostThreshold(0.01)
        for number in range(400):
            cost_threshold.arrived(100.0 + number % 300, 0.1 * (number - number % batch))
        for _ in range(5):
            cost_threshold.on_overdue(100.0)
        found.append(cost_threshold.value)
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_a_queue_that_is_found_there_says_nothing_of_what_comes():
    found = []
    for queue in (0, 500):
        cost_threshold = CostThreshold(0.01, start=200.0)
        for _ in range(queue):
            cost_threshold.arrived(1.0, 0.0)
        for number in range(1, 200):
            cost_threshold.arrived(100.0 + number % 300, 0.1 * number)
            if number % 20 == 0:
                cost_threshold.on_overdue(100.0)
        found.append(cost_threshold.value)
    assert found[0] == pytest.approx(found[1], rel=0.02)


# -- the order -----------------------------------------------------------------------------------------------------------------


def made(seq, *, output=100.0, prompt=100, weight=1.0, at_s=0.0, ttft_ms=4000.0):
    request = Request(id=f"{seq:06d}", tenant="t", model="m", arrival_s=at_s, prompt_tokens=prompt)
    estimates = Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=50.0), output_tokens=output)
    return QueueEntry(request=request, estimates=estimates, seq=seq, weight=weight)


def pressed(entries, lapses=60):
    """A queue in which requests have come too late."""
    policy = RobustEdf(dict(RobustEdf.default_parameters))
    for entry in entries:
        policy.push(entry, entry.request.arrival_s)
    cheapest = min(entries, key=lambda entry: entry.estimates.output_tokens)
    for _ in range(lapses):
        policy.on_overdue(cheapest, 100.0)
    return policy


def drained(policy):
    return [policy.pop(100.0).seq for _ in range(len(policy))]


def test_while_nobody_is_late_it_is_deadline_order():
    entries = [made(number, output=10.0 + 37 * number % 400, ttft_ms=1000.0 + 271 * number % 5000) for number in range(60)]
    edf = make_policy("edf")
    red = pressed(entries, lapses=0)
    for entry in entries:
        edf.push(entry, 0.0)
    assert red.cost_threshold == math.inf
    assert drained(red) == drained(edf)


def test_the_costliest_are_put_behind_all_others_the_cheapest_of_them_first():
    # The nearer the deadline the costlier: deadline order would serve the costliest first.
    entries = [made(number, output=100.0 + 10 * number, at_s=0.1 * number, ttft_ms=30_000.0 - 200 * number) for number in range(60)]
    policy = pressed(entries, lapses=12)
    costs = [100 + 2 * entry.estimates.output_tokens for entry in entries]
    costly = [number for number, cost in enumerate(costs) if cost > policy.cost_threshold]
    assert 10 < len(costly) < 58
    in_turn = sorted(set(range(60)) - set(costly), key=lambda number: entries[number].ttft_deadline_s)
    assert [policy.rank(entries[number].request.id) for number in costly] == list(range(len(in_turn), 60))
    assert drained(policy) == in_turn + costly


def test_begun_with_a_threshold_the_costliest_are_behind_from_the_first():
    entries = [made(number, output=100.0 + 10 * number, ttft_ms=30_000.0 - 200 * number) for number in range(20)]
    policy = make_policy("robust-edf", {"cost_threshold": 500.0})
    for entry in entries:
        policy.push(entry, 0.0)
    assert drained(policy) == [*range(10, -1, -1), *range(11, 20)]


def test_a_tenants_weight_is_what_its_requests_are_worth():
    entries = [made(number, output=300.0 if number % 2 else 100.0, weight=1.0, at_s=0.1 * number) for number in range(40)]
    assert all(number % 2 for number in drained(pressed(entries))[-20:])
    weighted = [
        made(number, output=300.0 if number % 2 else 100.0, weight=5.0 if number % 2 else 1.0, at_s=0.1 * number) for number in range(40)
    ]
    assert not any(number % 2 for number in drained(pressed(weighted))[-20:])


def test_those_that_were_put_behind_come_back_when_there_is_room():
    entries = [made(number, output=100.0 + 10 * number, at_s=0.1 * number) for number in range(60)]
    policy = pressed(entries)
    for number in range(30_000):
        at_s = 200.0 + 0.1 * number
        policy.push(made(1000 + number, output=100.0 + 10 * (number % 60), at_s=at_s), at_s)
        policy.pop(at_s)
    assert policy.cost_threshold == math.inf
    assert len(policy) == 60


def test_one_call_moves_no_more_than_a_few(heap_work: HeapWork):
    many = [made(number, output=100.0 + number % 600, at_s=0.001 * number) for number in range(20_000)]
    policy = pressed(many, lapses=4000)
    before = heap_work.moves
    policy.threshold.value = math.inf
    policy.pop(100.0)
    assert heap_work.moves - before < 500


def test_lapses_move_entries_of_a_script_that_loses_nobody():
    script = QueueScript(RobustEdf({**RobustEdf.default_parameters, "late_share": 0.001}), 5, probing=True)
    script.run(2000)
    assert len(script.order) > 400


# -- in the scheduler ----------------------------------------------------------------------------------------------------------


def build(policy, *, n_run=256, **settings):
    scheduler = Scheduler(
        settings=SchedulerSettings(**({"late_confidence": 0.5} | settings)),
        instances=[InstanceSpec(name="a", capacity_n_run=256, kv_capacity_tokens=PROFILE.kv_capacity_tokens)],
        router=make_router("least-loaded"),
        policy=policy,
    )
    scheduler.set_controls("a", Controls(n_run=n_run))
    return scheduler


@pytest.mark.parametrize("overdue", ["demote", "keep", "shed"])
def test_it_is_told_of_those_that_become_too_late_whatever_becomes_of_them(overdue):
    scheduler = build("robust-edf", n_run=1, overdue=overdue)
    for number in range(100):
        request = Request(id=f"{number:03d}", tenant="t", model="m", arrival_s=0.01 * number, prompt_tokens=100 + number)
        scheduler.submit(request, Estimates(slo=Slo(ttft_ms=1000.0, tpot_ms=100.0)), 0.01 * number)
    assert scheduler.cost_threshold == 0.0
    for _ in range(4):
        scheduler.expire(3.0)
    assert scheduler.cost_threshold > 0.0


def test_a_snapshot_tells_the_threshold_of_the_queue_that_gives_up_most():
    scheduler = build("robust-edf", n_run=1, overdue="keep")
    assert scheduler.snapshot(0.0, "gate").cost_threshold == 0.0
    for number in range(100):
        request = Request(id=f"{number:03d}", tenant="t", model="m", arrival_s=0.01 * number, prompt_tokens=100 + number)
        scheduler.submit(request, Estimates(slo=Slo(ttft_ms=1000.0, tpot_ms=100.0)), 0.01 * number)
    found = scheduler.snapshot(3.0, "gate").cost_threshold
    assert found == scheduler.cost_threshold
    assert 0.0 < found < math.inf
    scheduler.set_policy("edf", 3.0)
    assert scheduler.snapshot(3.0, "gate").cost_threshold == 0.0


def always(estimates, _request, _now_s):
    return estimates


def crowd(*, rate, seconds, seed=7):
    """Requests whose length everybody knows, one in four ten times as long as the others."""
    draw, at_s = random.Random(seed), 0.0
    while (at_s := at_s + draw.expovariate(rate)) < seconds:
        output = draw.choice([80, 80, 80, 800])
        request = Request(
            id=f"{at_s:012.6f}", tenant="t", model="m", arrival_s=at_s, prompt_tokens=int(draw.uniform(50, 1500)), stream=True
        )
        slo = Slo(ttft_ms=2000.0 * draw.uniform(1.0, 5.0), tpot_ms=60.0)
        believed = Estimates(slo=slo, output_tokens=float(output), output_tokens_upper=2.0 * output, ttft_ms=100.0, tpot_ms=20.0)
        yield Arrival(request=request, estimate=partial(always, believed), output_tokens=output)


def good(policy, rate):
    records = simulate(
        crowd(rate=rate, seconds=120.0), {"a": EngineModel(PROFILE, n_run=64)}, build(policy, n_run=64), until_s=900.0
    ).records
    return sum(record.slo_met for record in records) / len(records)


@pytest.mark.slow
def test_in_an_overload_more_are_in_time_and_without_one_as_many():
    found = {rate: (good("robust-edf", rate), good("edf", rate)) for rate in (5.0, 16.0)}
    assert found[16.0][0] > 1.15 * found[16.0][1], found
    assert found[5.0][0] == pytest.approx(found[5.0][1], abs=0.005), found
