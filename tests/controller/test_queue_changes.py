"""Changes that touch all waiting requests: none is lost or doubled, and the order is that of the active policy."""

from typing import Literal
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_kit import of_type

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import NO_LIMITS, Tenancy, TenantLimits
from hmas.controller.scheduling.policies import registry as pool
from hmas.controller.scheduling.policies.registry import POLICIES, make_policy
from hmas.controller.scheduling.policies.sjf import Sjf
from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.model_queues import ModelQueues
from hmas.controller.scheduling.queue.tenant_accounts import TenantAccounts
from hmas.controller.scheduling.queue.tenant_share import TenantShareLimiter, sharing
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
    "wait",
    "models",
    "weigh",
    "limit",
)
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 10_000)), max_size=90)


def believed(number: int) -> Estimates:
    slo = Slo(ttft_ms=200.0 + number * 37 % 900, tpot_ms=50.0)
    return Estimates(slo=slo, output_tokens=1.0 + number * 7919 % 400, ttft_ms=10.0 + number % 90)


def request(number: int, at_s: float, model: str = "a", deadline_s: float = float("inf"), tenants: int = 1) -> Request:
    """Of one tenant, so that the policy alone orders, or of several."""
    priority = number % 5 - 2
    tenant = f"t{number % tenants}"
    return Request(
        id=f"r{number}",
        tenant=tenant,
        model=model,
        arrival_s=at_s,
        prompt_tokens=10 + number % 90,
        priority=priority,
        deadline_s=deadline_s,
    )


Overdue = Literal["keep", "demote", "shed"]


def made(*, policy: str = "fcfs", instances: int = 2, window: int = 2, overdue: Overdue = "keep") -> Scheduler:
    return Scheduler(
        settings=SchedulerSettings(queue_limit=1000, overdue=overdue, fence=False),
        instances=[InstanceSpec(name=f"i{i}", capacity_n_run=window) for i in range(instances)],
        router=make_router("least-loaded"),
        policy=policy,
    )


def audit(scheduler: Scheduler, waiting: dict[str, QueueEntry]) -> None:
    """Every request that waits is in the queue once, with its tokens and a place."""
    scheduler.check_conservation()
    queued = scheduler.queued_ids()
    assert sorted(queued) == sorted(waiting)
    assert queued == sorted(queued, key=lambda request_id: waiting[request_id].seq)
    for request_id in queued[:3]:
        assert 0 <= (scheduler.position(request_id) or 0) < len(queued)


def drain(scheduler: Scheduler, waiting: dict[str, QueueEntry], running: list[str], now_s: float) -> None:
    """Every request that waits is dispatched, or dropped because it is overdue, once."""
    for number in range(2):
        scheduler.set_models(f"i{number}", None)
        audit(scheduler, waiting)
    for _ in range(2 * len(waiting) + 2 * len(running) + 2):
        for dropped in scheduler.drop_due(now_s):
            del waiting[dropped.entry.request.id]
        for request_id in running:
            scheduler.end(request_id, OutcomeKind.COMPLETED, now_s, 1)
        running = dispatched(scheduler, now_s, waiting, check=False)
    assert not waiting
    assert scheduler.counts().arrived == sum(scheduler.counts().ended.values())
    snapshot = scheduler.snapshot(now_s, "g")
    assert (snapshot.queued, snapshot.queued_tokens, snapshot.queued_long, snapshot.overdue) == (0, 0, 0, 0)


def dispatched(scheduler: Scheduler, now_s: float, waiting: dict[str, QueueEntry], *, check: bool) -> list[str]:
    """Dispatches, and holds what goes against a sorted table under the policy in force."""
    reference = make_policy(scheduler.policy, scheduler.parameters)
    sent = scheduler.dispatch(now_s)
    for one in sent:
        if check and isinstance(reference, KeyedPolicy) and type(reference).key is not KeyedPolicy.key:
            first = min(waiting.values(), key=lambda entry: (reference.key(entry), entry.seq))
            assert one.entry is first
        del waiting[one.entry.request.id]
    return [one.entry.request.id for one in sent]


LIMITS = (NO_LIMITS, TenantLimits(concurrency_share=0.25), TenantLimits(max_running=1), TenantLimits(tokens_per_minute=1_000_000))


def drive(script, *, models: bool, overdue: Overdue = "keep", limits: bool = False) -> None:
    scheduler = made(policy="edf", overdue=overdue)
    waiting: dict[str, QueueEntry] = {}
    entries: dict[str, QueueEntry] = {}
    weights: dict[str, float] = {}
    running: list[str] = []
    wanted, retried, now_s = "edf", False, 0.0
    tenants = 3 if models or limits or overdue != "keep" else 1
    for number, (step, pick) in enumerate(script):
        if step == "submit":
            model = MODELS[pick % 3] if models else "a"
            deadline_s = now_s + pick % 7 if overdue != "keep" and pick % 3 == 0 else float("inf")
            entry = of_type(QueueEntry, scheduler.submit(request(number, now_s, model, deadline_s, tenants), believed(pick), now_s))
            waiting[entry.request.id] = entries[entry.request.id] = entry
        elif step == "revise" and waiting:
            scheduler.revise(sorted(waiting)[pick % len(waiting)], believed(pick + 1), now_s)
        elif step == "dispatch":
            plain = not (models or retried or limits) and overdue == "keep"
            running += dispatched(scheduler, now_s, waiting, check=plain)
        elif step == "end" and running:
            scheduler.end(running.pop(pick % len(running)), OutcomeKind.COMPLETED, now_s, pick % 50)
        elif step == "retry" and running:
            name = running[pick % len(running)]
            if scheduler.retry(name, now_s):
                running.remove(name)
                waiting[name], retried = entries[name], True
        elif step == "cancel" and waiting:
            name = sorted(waiting)[pick % len(waiting)]
            scheduler.end(name, OutcomeKind.CANCELLED, now_s)
            del waiting[name]
        elif step == "switch":
            wanted = "fcfs" if pick % 3 == 0 else sorted(POLICIES)[pick % len(POLICIES)]
            scheduler.set_policy(wanted, now_s, {"threshold_ms": 1.0 + pick} if wanted == "two-lane" and pick % 2 else None)
        elif step == "wait":
            now_s += pick % 10 / 10.0
            for dropped in scheduler.drop_due(now_s):
                del waiting[dropped.entry.request.id]
        elif step == "models" and models:
            scheduler.set_models(f"i{pick % 2}", SERVED[pick % 4])
        elif step == "drain":
            scheduler.set_draining(f"i{pick % 2}", draining=bool(pick % 3 == 0))
        elif step == "window":
            scheduler.set_controls(f"i{pick % 2}", Controls(n_run=1 + pick % 4))
        elif step == "health":
            scheduler.observe(EngineSnapshot(engine=f"i{pick % 2}", taken_s=now_s, healthy=pick % 3 != 0))
        elif step == "weigh":
            weights[f"t{pick % 3}"] = 1.0 + pick % 4
            scheduler.set_weights({f"t{pick % 3}": 1.0 + pick % 4})
        elif step == "limit" and limits:
            scheduler.set_limits(f"t{pick % 3}", LIMITS[pick % len(LIMITS)], now_s)
        audit(scheduler, waiting)
        assert scheduler.policy == wanted
        assert all(entry.weight == weights.get(entry.request.tenant, 1.0) for entry in waiting.values())
    for tenant in ("t0", "t1", "t2"):
        scheduler.set_limits(tenant, NO_LIMITS, now_s)
    drain(scheduler, waiting, running, now_s)


@settings(max_examples=120, deadline=None)
@given(steps)
def test_whatever_happens_during_changes_nothing_is_lost_and_the_order_is_the_one_in_force(script):
    drive(script, models=False)


@settings(max_examples=80, deadline=None)
@given(steps)
def test_engines_that_change_their_models_meanwhile_lose_nothing_either(script):
    drive(script, models=True)


@settings(max_examples=60, deadline=None)
@given(steps, st.sampled_from(["demote", "shed"]))
def test_demotions_and_deadlines_meanwhile_lose_nothing_either(script, overdue):
    drive(script, models=False, overdue=overdue)


def filled(count: int, policy: str = "edf") -> tuple[Scheduler, dict[str, QueueEntry]]:
    """A scheduler whose windows are full and where `count` wait."""
    scheduler = made(policy=policy, instances=1, window=1)
    waiting: dict[str, QueueEntry] = {}
    for number in range(count + 1):
        entry = of_type(QueueEntry, scheduler.submit(request(number, 0.0), believed(number), 0.0))
        waiting[entry.request.id] = entry
        if number == 0:
            dispatched(scheduler, 0.0, waiting, check=False)
    return scheduler, waiting


def end_and_dispatch(scheduler: Scheduler) -> QueueEntry:
    scheduler.end(scheduler.running_ids()[0], OutcomeKind.COMPLETED, 1.0, 5)
    (one,) = scheduler.dispatch(1.0)
    return one.entry


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_is_active_with_the_call_that_asks_for_it_and_serves_each_request_once(name: str):
    scheduler, waiting = filled(600, "sjf" if name == "edf" else "edf")
    for request_id in sorted(waiting)[::7]:
        scheduler.end(request_id, OutcomeKind.CANCELLED, 1.0)
        del waiting[request_id]
    assert scheduler.set_policy(name, 1.0)
    assert not scheduler.set_policy(name, 1.0)
    assert scheduler.policy == name
    audit(scheduler, waiting)
    reference = make_policy(name)
    reference.load(sorted(waiting.values(), key=lambda entry: entry.seq), 1.0)
    while waiting:
        entry = end_and_dispatch(scheduler)
        assert entry is reference.pop(1.0)
        reference.on_finished(entry, 5, 1.0)
        del waiting[entry.request.id]
    assert not scheduler.queued


def test_a_request_that_came_back_keeps_its_arrival_under_the_next_policy():
    scheduler = made(instances=2, window=1)
    for number in range(10):
        scheduler.submit(request(number, 0.0), believed(number), 0.0)
    first, _ = [one.entry.request.id for one in scheduler.dispatch(0.0)]
    assert scheduler.retry(first, 0.0)
    scheduler.set_policy("edf", 0.0)
    scheduler.set_policy("fcfs", 0.0)
    assert (scheduler.queued_ids()[0], scheduler.position(first)) == (first, 0)


class Lossy(Sjf):
    name = "wrong"

    def push(self, entry: QueueEntry, now_s: float) -> None:
        if entry.seq % 10:
            super().push(entry, now_s)

    def load(self, entries, now_s: float) -> None:
        super().load([entry for entry in entries if entry.seq % 10], now_s)


class Raising(Sjf):
    name = "wrong"

    def load(self, entries, now_s: float) -> None:
        super().load(entries[:10], now_s)
        raise KeyError("lost")


@pytest.mark.parametrize(
    ("wrong", "fault"), [(Lossy, "holds 23 requests where 25 wait"), (Raising, r"failed to load the requests \(KeyError\('lost'\)\)")]
)
def test_a_policy_that_loses_requests_or_fails_never_comes_into_force(wrong, fault):
    scheduler, waiting = filled(25)
    fault = f"'wrong' {fault}; the former one stays active"
    with mock.patch.object(pool, "POLICIES", {**POLICIES, "wrong": wrong}), pytest.raises(SchedulingError, match=fault):
        scheduler.set_policy("wrong", 1.0)
    assert scheduler.policy == "edf"
    audit(scheduler, waiting)
    assert len({end_and_dispatch(scheduler).seq for _ in range(25)}) == 25


def test_the_requests_of_a_group_whose_models_part_go_where_they_belong():
    scheduler = made(instances=2, window=1)
    for number in range(40):
        scheduler.submit(request(number, 0.0, model=MODELS[number % 2]), believed(number), 0.0)
    scheduler.set_models("i0", frozenset("a"))
    scheduler.set_models("i1", frozenset("b"))
    assert sorted((one.entry.request.model, one.instance, one.entry.seq) for one in scheduler.dispatch(0.0)) == [
        ("a", "i0", 0),
        ("b", "i1", 1),
    ]


def test_a_group_that_keeps_its_models_together_goes_on_at_once():
    scheduler = made(instances=3, window=1)
    for name in ("i0", "i1", "i2"):
        scheduler.set_models(name, frozenset("a"))
    for number in range(40):
        scheduler.submit(request(number, 0.0), believed(number), 0.0)
    scheduler.set_models("i2", frozenset("z"))
    assert [(one.instance, one.entry.seq) for one in scheduler.dispatch(0.0)] == [("i0", 0), ("i1", 1)]


def test_instances_that_change_their_models_together_are_grouped_once_and_before_the_next_decision():
    scheduler = made(instances=10, window=4)
    for number in range(40):
        scheduler.submit(request(number, 0.0, model=MODELS[number % 2]), believed(number), 0.0)
    with mock.patch.object(ModelQueues, "regroup", autospec=True, side_effect=ModelQueues.regroup) as regroup:
        for number in range(10):
            scheduler.set_models(f"i{number}", frozenset(MODELS[number % 2]))
        assert regroup.call_count == 0
        sent = scheduler.dispatch(0.0)
        assert regroup.call_count == 1
        assert len(sent) == 40
        assert {(one.entry.request.model, int(one.instance[1:]) % 2) for one in sent} == {("a", 0), ("b", 1)}
        scheduler.set_models("i0", frozenset("c"))
        scheduler.set_models("i2", frozenset("c"))
        scheduler.submit(request(40, 1.0, model="c"), believed(1), 1.0)
        assert regroup.call_count == 2
        scheduler.submit(request(41, 1.0, model="a"), believed(1), 1.0)
        for one in sent:
            scheduler.end(one.entry.request.id, OutcomeKind.COMPLETED, 1.0, 1)
        later = sorted((one.entry.request.model, one.instance in {"i0", "i2"}) for one in scheduler.dispatch(1.0))
        assert later == [("a", False), ("c", True)]
        assert regroup.call_count == 2


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
    sweeps = 0
    while scheduler.behind:
        sweeps += 1
        scheduler.sweep(100.0)
        scheduler.check_conservation()
    assert sweeps > 0
    assert scheduler.snapshot(100.0, "g").overdue == 399


@settings(max_examples=120, deadline=None)
@given(steps, st.booleans(), st.sampled_from(["keep", "demote", "shed"]))
def test_limits_that_come_and_go_meanwhile_lose_nothing(script, models, overdue):
    drive(script, models=models, overdue=overdue, limits=True)


@pytest.mark.parametrize("policy", ["fcfs", "wfq", "vtc", "stride", "lottery"])
@settings(max_examples=40, deadline=None)
@given(script=st.lists(st.tuples(st.sampled_from(["push", "pop", "undo", "discard", "limit", "free"]), st.integers(0, 2)), max_size=60))
def test_a_tenant_at_its_limit_is_passed_and_its_requests_stay(policy, script):
    tenancy = Tenancy({}, ())
    for running in range(3):
        tenancy.started(request(running, 0.0, tenants=3))
    limiter = TenantShareLimiter(sharing(make_policy(policy), TenantAccounts()), tenancy)
    waiting: dict[str, QueueEntry] = {}
    out: list[QueueEntry] = []
    for number, (step, pick) in enumerate(script):
        tenant = f"t{pick}"
        if step == "push":
            for copy in range(8):
                entry = QueueEntry(
                    request=request(3 * (8 * number + copy) + pick, 0.0, tenants=3), estimates=believed(1), seq=8 * number + copy
                )
                waiting[entry.request.id] = entry
                limiter.push(entry, 0.0)
        elif step == "pop":
            popped = limiter.pop(0.0)
            open_to = {one.request.tenant for one in waiting.values() if not tenancy.limits(one.request.tenant).bounded}
            assert (popped is None) == (not open_to)
            if popped is None:
                popped = limiter.pop_limited(0.0)
                assert (popped is None) == (not waiting)
            else:
                assert popped.request.tenant in open_to
            if popped is not None:
                assert waiting.pop(popped.request.id) is popped
                out = [popped]
        elif step == "undo" and out:
            waiting[out[0].request.id] = out[0]
            limiter.policy.undo_pop(out.pop(), 0.0)
        elif step == "discard" and waiting:
            assert limiter.policy.discard(next(iter(waiting))) is waiting.pop(next(iter(waiting)))
        elif step in {"limit", "free"}:
            # With one request in flight a tenant with this limit is at its share of no windows.
            tenancy.set_limits(tenant, TenantLimits(concurrency_share=0.5) if step == "limit" else NO_LIMITS, 0.0)
        assert sorted(entry.request.id for entry in limiter.policy.entries()) == sorted(waiting)
        assert len(limiter.policy) == len(waiting)
