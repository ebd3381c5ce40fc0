"""Changes that touch all that wait, in slices: nothing is lost or doubled, and the order is the one in force, whatever comes in between."""

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import NO_LIMITS, TenantLimits
from hmas.controller.scheduling.policies import registry as pool
from hmas.controller.scheduling.policies.edf import Edf
from hmas.controller.scheduling.policies.registry import POLICIES, make_policy
from hmas.controller.scheduling.policies.sjf import Sjf
from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue import policy_switch as queues
from hmas.controller.scheduling.queue.tenant_share import SHOWN, TenantShareLimiter
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.base import EngineSnapshot

MODELS = ("a", "b", "c")
SERVED = (None, frozenset("a"), frozenset("ab"), frozenset("bc"))
STEPS = (
    "submit",
    "submit",
    "submit",
    "revise",
    "dispatch",
    "end",
    "retry",
    "cancel",
    "switch",
    "settle",
    "settle",
    "wait",
    "models",
    "weigh",
    "limit",
)
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 10_000)), max_size=90)


@pytest.fixture(autouse=True)
def slices() -> Iterator[None]:
    """Changes go in slices from the first request on."""
    with mock.patch.object(queues, "AT_ONCE", 0):
        yield


def believed(number: int) -> Estimates:
    slo = Slo(ttft_ms=200.0 + number * 37 % 900, tpot_ms=50.0)
    return Estimates(slo=slo, output_tokens=1.0 + number * 7919 % 400, ttft_ms=10.0 + number % 90)


def request(number: int, at_s: float, model: str = "a", deadline_s: float = float("inf")) -> Request:
    priority = number % 5 - 2
    tenant = f"t{number % 3}"
    return Request(
        id=f"r{number}",
        tenant=tenant,
        model=model,
        arrival_s=at_s,
        prompt_tokens=10 + number % 90,
        priority=priority,
        deadline_s=deadline_s,
    )


def made(*, policy: str = "fcfs", instances: int = 2, window: int = 2, overdue: str = "keep") -> Scheduler:
    return Scheduler(
        settings=SchedulerSettings(queue_limit=1000, overdue=overdue, fence=False),
        instances=[InstanceSpec(name=f"i{i}", capacity_n_run=window) for i in range(instances)],
        router=make_router("least-loaded"),
        policy=policy,
    )


def ids(structure) -> list[str]:
    return [entry.request.id for entry in structure.entries()]


def audit(scheduler: Scheduler, waiting: dict[str, QueueEntry]) -> None:
    """Every request that waits is where it should be, once, in the register and in the structures."""
    scheduler.check_conservation()
    for group in scheduler._wait_queue.groups:
        assert list(group.open) == [instance for instance in group.instances if instance.open]
    registered: list[str] = []
    for group in scheduler._wait_queue.queues.all():
        members = list(group)
        assert [member.after for member in members[:-1]] == members[1:]
        assert [member.before for member in members[1:]] == members[:-1]
        assert (members[-1] if members else None) is group.last
        registered += [member.entry.request.id for member in members]
        ready = {member.entry.request.id for member in members if member.place == "ready"}
        reached = {m.entry.request.id for m in members if m.place == "ready" and m.passed == group._changes}
        rest = [] if group.rest is None else ids(group.rest)
        assert sorted(ids(group.policy) + rest) == sorted(ready)
        if group.rest is not None:
            assert set(ids(group.policy)) == reached
        if group.successor is not None:
            assert sorted(ids(group.successor)) == sorted(reached)
            assert len(group.successor) == len(reached)
        assert sorted(ids(group.late)) == sorted(member.entry.request.id for member in members if member.place == "late")
    assert sorted(registered) == sorted(waiting) == sorted(scheduler.queued_ids())


def dispatched(scheduler: Scheduler, now_s: float, waiting: dict[str, QueueEntry], *, check: bool) -> list[str]:
    """Dispatches, and holds what goes against a sorted table under the policy in force."""
    reference = make_policy(scheduler.policy, scheduler.parameters)
    sent = scheduler.dispatch(now_s)
    for one in sent:
        if check and type(reference).key is not KeyedPolicy.key if isinstance(reference, KeyedPolicy) else False:
            first = min(waiting.values(), key=lambda entry: (reference.key(entry), entry.seq))
            assert one.entry is first
        del waiting[one.entry.request.id]
    return [one.entry.request.id for one in sent]


LIMITS = (NO_LIMITS, TenantLimits(concurrency_share=0.25), TenantLimits(max_running=1), TenantLimits(tokens_per_minute=1_000_000))


def drive(script, *, models: bool, overdue: str = "keep", limits: bool = False) -> Scheduler:
    scheduler = made(policy="edf", overdue=overdue)
    waiting: dict[str, QueueEntry] = {}
    running: list[str] = []
    wanted, retried, now_s = "edf", False, 0.0
    for number, (step, pick) in enumerate(script):
        if step == "submit":
            model = MODELS[pick % 3] if models else "a"
            deadline_s = now_s + pick % 7 if overdue != "keep" and pick % 3 == 0 else float("inf")
            entry = scheduler.submit(request(number, now_s, model, deadline_s), believed(pick), now_s)
            waiting[entry.request.id] = entry
        elif step == "revise" and waiting:
            scheduler.revise(sorted(waiting)[pick % len(waiting)], believed(pick + 1), now_s)
        elif step == "dispatch":
            plain = not (models or retried or limits) and overdue == "keep"
            running += dispatched(scheduler, now_s, waiting, check=plain)
        elif step == "end" and running:
            scheduler.end(running.pop(pick % len(running)), OutcomeKind.COMPLETED, now_s, pick % 50)
        elif step == "retry" and running:
            name = running[pick % len(running)]
            entry = scheduler._running[name].entry
            if scheduler.retry(name, now_s):
                running.remove(name)
                waiting[name], retried = entry, True
        elif step == "cancel" and waiting:
            name = sorted(waiting)[pick % len(waiting)]
            scheduler.end(name, OutcomeKind.CANCELLED, now_s)
            del waiting[name]
        elif step == "switch":
            wanted = "fcfs" if pick % 3 == 0 else sorted(POLICIES)[pick % len(POLICIES)]
            scheduler.set_policy(wanted, now_s, {"threshold_ms": 1.0 + pick} if wanted == "two-lane" and pick % 2 else None)
            assert wanted in {scheduler.policy, scheduler.next_policy}
            assert wanted != "fcfs" or scheduler.policy == "fcfs"
        elif step == "settle":
            scheduler.settle(1 + pick % 7, now_s)
        elif step == "wait":
            now_s += pick % 10 / 10.0
            for dropped in scheduler.drop_due(now_s):
                del waiting[dropped.entry.request.id]
        elif step == "models" and models:
            scheduler.set_models(f"i{pick % 2}", SERVED[pick % 4], now_s)
        elif step == "drain":
            scheduler.set_draining(f"i{pick % 2}", draining=bool(pick % 3 == 0))
        elif step == "window":
            scheduler.set_controls(f"i{pick % 2}", Controls(n_run=1 + pick % 4))
        elif step == "health":
            scheduler.observe(EngineSnapshot(engine=f"i{pick % 2}", taken_s=now_s, healthy=pick % 3 != 0))
        elif step == "weigh":
            scheduler.set_weight(f"t{pick % 3}", 1.0 + pick % 4, now_s)
        elif step == "limit" and limits:
            scheduler.set_limits(f"t{pick % 3}", LIMITS[pick % len(LIMITS)], now_s)
        audit(scheduler, waiting)
    for _ in range(20 * len(script) + 100):
        if not scheduler.settle(3, now_s):
            break
        audit(scheduler, waiting)
    assert scheduler.settled
    assert (scheduler.policy, scheduler.next_policy) == (wanted, "")
    for entry in waiting.values():
        assert entry.weight == scheduler._weights.get(entry.request.tenant, 1.0)
    room = scheduler._wait_queue
    assert room.long == sum(member.long for group in room.groups for member in group)
    return scheduler


@settings(max_examples=120, deadline=None)
@given(steps)
def test_whatever_happens_during_changes_nothing_is_lost_and_the_order_is_the_one_in_force(script):
    drive(script, models=False)


@settings(max_examples=80, deadline=None)
@given(steps)
def test_engines_that_change_their_models_meanwhile_lose_nothing_either(script):
    scheduler = drive(script, models=True)
    for group in scheduler._wait_queue.groups:
        for member in group:
            assert scheduler._wait_queue.group_of(member.entry.request.model) is group


@settings(max_examples=60, deadline=None)
@given(steps, st.sampled_from(["demote", "shed"]))
def test_demotions_and_deadlines_meanwhile_lose_nothing_either(script, overdue):
    drive(script, models=False, overdue=overdue)


def filled(count: int, policy: str = "edf") -> tuple[Scheduler, dict[str, QueueEntry]]:
    """A scheduler whose windows are full and where `count` wait."""
    scheduler = made(policy=policy, instances=1, window=1)
    waiting = {}
    for number in range(count + 1):
        entry = scheduler.submit(request(number, 0.0), believed(number), 0.0)
        waiting[entry.request.id] = entry
        if number == 0:
            dispatched(scheduler, 0.0, waiting, check=False)
    return scheduler, waiting


def settle(scheduler: Scheduler) -> None:
    while scheduler.settle(4, 1.0):
        pass


def end_and_dispatch(scheduler: Scheduler) -> QueueEntry:
    scheduler.end(scheduler.running_ids()[0], OutcomeKind.COMPLETED, 1.0, 5)
    (one,) = scheduler.dispatch(1.0)
    return one.entry


def test_the_old_policy_rules_until_the_new_one_is_whole():
    scheduler, waiting = filled(20)
    scheduler.set_policy("sjf", 1.0)
    assert (scheduler.policy, scheduler.next_policy) == ("edf", "sjf")
    scheduler.settle(15, 1.0)
    earliest = Edf({"key": 0.0})
    for _ in range(3):
        entry = end_and_dispatch(scheduler)
        assert entry is min(waiting.values(), key=lambda entry: (earliest.key(entry), entry.seq))
        del waiting[entry.request.id]
    while scheduler.next_policy:
        scheduler.settle(1, 1.0)
    assert scheduler.policy == "sjf"
    audit(scheduler, waiting)
    shortest = Sjf({"aging_ms_per_s": 20.0})
    assert end_and_dispatch(scheduler) is min(waiting.values(), key=lambda entry: (shortest.key(entry), entry.seq))


@pytest.mark.parametrize("settled", [0, 1, 7])
def test_arrival_order_is_in_force_with_the_call_that_asks_for_it(settled: int):
    scheduler, _ = filled(600)
    scheduler.set_policy("fcfs", 1.0)
    assert (scheduler.policy, scheduler.next_policy) == ("fcfs", "")
    order = []
    for _ in range(600):
        order.append(end_and_dispatch(scheduler).seq)
        if settled:
            scheduler.settle(settled, 1.0)
    assert order == sorted(order)
    assert not scheduler.queued


def test_of_several_policies_asked_for_the_newest_comes():
    scheduler, waiting = filled(30)
    for name in ("sjf", "wfq", "two-lane"):
        scheduler.set_policy(name, 1.0)
        scheduler.settle(10, 1.0)
        audit(scheduler, waiting)
    assert scheduler.next_policy == "two-lane"
    assert scheduler.set_policy("edf", 1.0)
    assert (scheduler.policy, scheduler.next_policy) == ("edf", "")
    assert not scheduler.set_policy("edf", 1.0)
    scheduler.set_policy("fcfs", 1.0)
    scheduler.settle(5, 1.0)
    scheduler.set_policy("wfq", 1.0)
    assert (scheduler.policy, scheduler.next_policy) == ("fcfs", "wfq")
    while scheduler.settle(1, 1.0):
        audit(scheduler, waiting)
    assert scheduler.policy == "wfq"


def test_a_policy_that_loses_requests_never_comes_into_force():
    class Lossy(Sjf):
        name = "lossy"

        def push(self, entry: QueueEntry, now_s: float) -> None:
            if entry.seq % 10:
                super().push(entry, now_s)

        def load(self, entries, now_s: float) -> None:
            super().load([entry for entry in entries if entry.seq % 10], now_s)

    scheduler, waiting = filled(25)
    with mock.patch.object(pool, "POLICIES", {**POLICIES, "lossy": Lossy}):
        scheduler.set_policy("lossy", 1.0)
        with pytest.raises(SchedulingError, match="'lossy' holds 23 requests where 25 wait; 'edf' stays in force"):
            settle(scheduler)
    assert (scheduler.policy, scheduler.next_policy) == ("edf", "")
    settle(scheduler)
    audit(scheduler, waiting)
    assert len({end_and_dispatch(scheduler).seq for _ in range(25)}) == 25


def test_one_call_touches_no_more_than_it_may():
    scheduler, _ = filled(50)
    scheduler.set_policy("sjf", 1.0)
    (group,) = scheduler._wait_queue.groups
    for calls in range(1, 10):
        scheduler.settle(5, 1.0)
        assert len(group.successor) == 5 * calls
    old = group.policy
    scheduler.settle(5, 1.0)
    assert (scheduler.policy, len(old)) == ("sjf", 50)
    for calls in range(10):
        assert len(old) == 50 - 5 * calls
        scheduler.settle(5, 1.0)
    assert not scheduler.settle(5, 1.0)


def test_a_group_whose_models_part_is_not_dispatched_from_until_its_requests_are_where_they_belong():
    scheduler = made(instances=2, window=1)
    for number in range(40):
        scheduler.submit(request(number, 0.0, model=MODELS[number % 2]), believed(number), 0.0)
    scheduler.set_models("i0", frozenset("a"), 0.0)
    scheduler.set_models("i1", frozenset("b"), 0.0)
    assert scheduler.dispatch(0.0) == []
    while scheduler.settle(3, 0.0):
        pass
    assert sorted((one.entry.request.model, one.instance, one.entry.seq) for one in scheduler.dispatch(0.0)) == [
        ("a", "i0", 0),
        ("b", "i1", 1),
    ]


def test_a_group_that_keeps_its_models_together_goes_on_at_once():
    scheduler = made(instances=3, window=1)
    for name in ("i0", "i1", "i2"):
        scheduler.set_models(name, frozenset("a"), 0.0)
    for number in range(40):
        scheduler.submit(request(number, 0.0), believed(number), 0.0)
    scheduler.set_models("i2", frozenset("z"), 0.0)
    assert [(one.instance, one.entry.seq) for one in scheduler.dispatch(0.0)] == [("i0", 0), ("i1", 1)]


def test_a_burst_whose_time_has_come_is_ended_a_bounded_number_at_a_time_and_in_order():
    scheduler = made(instances=1, window=1, overdue="demote")
    for number in range(400):
        scheduler.submit(request(number, 0.0, deadline_s=2.0), believed(1), 0.0)
    ended = []
    while dropped := scheduler.drop_due(3.0):
        assert len(dropped) <= 32
        ended += [one.entry.seq for one in dropped]
        scheduler.check_conservation()
    assert ended == list(range(400))
    assert scheduler.counts().ended[OutcomeKind.TIMED_OUT] == 400


def test_a_burst_that_becomes_overdue_is_demoted_a_bounded_number_at_a_time():
    scheduler = made(instances=1, window=1, overdue="demote")
    for number in range(400):
        scheduler.submit(request(number, 0.0), believed(1), 0.0)
    scheduler.dispatch(100.0)
    first = scheduler.snapshot(100.0, "g").overdue
    assert 0 < first < 399
    assert not scheduler.settled
    while scheduler.settle(10, 100.0):
        scheduler.check_conservation()
    assert scheduler.snapshot(100.0, "g").overdue == 399


def well_sorted(scheduler: Scheduler) -> None:
    """Of a tenant whose slots are limited no more than a few stand among the others; of one whose are not, all do."""
    bounded = scheduler._tenancy.bounded
    for group in scheduler._wait_queue.groups:
        for structure in (group.policy, group.late):
            if not isinstance(structure, TenantShareLimiter):
                assert not bounded
                continue
            among: dict[str, int] = {}
            for entry in structure.inner.entries():
                tenant = entry.request.tenant
                among[tenant] = among.get(tenant, 0) + 1
                assert (tenant in bounded) == (entry.request.id in structure._shown_of)
            assert set(structure._aside) <= bounded
            # A walk may put back what it passed beside those that took its place.
            assert all(among[tenant] <= 2 * SHOWN for tenant in bounded & among.keys())


@settings(max_examples=120, deadline=None)
@given(steps, st.booleans(), st.sampled_from(["keep", "demote", "shed"]))
def test_limits_that_come_and_go_meanwhile_lose_nothing_and_end_in_force(script, models, overdue):
    scheduler = drive(script, models=models, overdue=overdue, limits=True)
    well_sorted(scheduler)
    for tenant, held in scheduler._tenancy.running.items():
        assert held == sum(run.entry.request.tenant == tenant for run in scheduler._running.values())
