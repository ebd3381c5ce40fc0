"""Tenants share service by weight under every policy, and one tenant alone is ordered as the policy orders it."""

from collections import Counter
from typing import Literal

import pytest
from heap_kit import HeapWork
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_kit import known

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policies.fcfs import Fcfs
from hmas.controller.scheduling.policies.registry import POLICIES, make_policy
from hmas.controller.scheduling.policies.two_lane import TwoLane
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue import tenant_accounts, tenant_queues
from hmas.controller.scheduling.queue.tenant_accounts import TenantAccounts
from hmas.controller.scheduling.queue.tenant_queues import TenantQueues
from hmas.controller.scheduling.queue.tenant_share import sharing
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

SLOTS = 8


def believed(output: float = 100.0, ttft_ms: float = 600_000.0) -> Estimates:
    return Estimates(slo=Slo(ttft_ms=ttft_ms, tpot_ms=100.0), output_tokens=output, output_tokens_upper=2 * output, ttft_ms=50, tpot_ms=10)


def request(number: int, tenant: str, *, prompt: int = 100, at_s: float = 0.0, session: str = "", priority: int = 0) -> Request:
    return Request(
        id=f"{tenant}{number:06d}",
        tenant=tenant,
        model="m",
        arrival_s=at_s,
        prompt_tokens=prompt,
        session=session,
        priority=priority,
    )


def entry(number: int, tenant: str, *, weight: float = 1.0, output: float = 100.0, seq: int | None = None, **more) -> QueueEntry:
    return QueueEntry(
        request=request(number, tenant, **more), estimates=believed(output), seq=number if seq is None else seq, weight=weight
    )


def build(policy: str, *, overdue: Literal["keep", "demote", "shed"] = "demote", queue_limit: int = 20_000) -> Scheduler:
    made = Scheduler(
        settings=SchedulerSettings(overdue=overdue, fence=False, queue_limit=queue_limit),
        instances=[InstanceSpec(name="i", capacity_n_run=SLOTS)],
        router=make_router("least-loaded"),
        policy=policy,
    )
    made.set_controls("i", Controls(n_run=SLOTS))
    return made


def served(made: Scheduler, steps: int, output: int = 100) -> Counter[str]:
    """Ends the oldest in flight and dispatches again, so many times: how many requests of each tenant were dispatched."""
    found: Counter[str] = Counter()
    for step in range(steps):
        now_s = 0.05 * step
        found.update(one.entry.request.tenant for one in made.dispatch(now_s))
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, now_s, output)
    return found


@pytest.mark.parametrize("weight", [1.0, 4.0])
@pytest.mark.parametrize("policy", list(POLICIES))
def test_two_tenants_that_wait_are_served_by_weight_under_every_policy(policy: str, weight: float):
    made = build(policy)
    made.set_weights({"b": weight})
    for number in range(600):  # a was first with all of its requests, and has ten sessions for one of b
        made.submit(request(number, "a", session=f"s{number % 10}"), believed(), 0.0)
    for number in range(600):
        made.submit(request(number, "b", session="s"), believed(), 0.0, weight)
    share = served(made, 500)["b"] / 500
    # lottery draws: three standard deviations of 500 draws.
    assert share == pytest.approx(weight / (1 + weight), abs=0.07 if policy == "lottery" else 0.04)
    made.check_conservation()


@pytest.mark.parametrize("policy", ["robust-edf", "fcfs", "priority", "two-lane", "sjf"])
def test_service_is_shared_in_tokens_at_the_true_lengths(policy: str):
    made = build(policy)
    made.set_weights({"a": 2.0})
    # Both are believed to be alike; a's requests turn out four times as long.
    for number in range(2000):
        made.submit(request(number, "a", priority=-5), believed(), 0.0)
        made.submit(request(number, "b"), believed(), 0.0)
    tokens: Counter[str] = Counter()
    for step in range(1200):
        made.dispatch(0.01 * step)
        ended = made.running_ids()[0]
        output = 700 if ended.startswith("a") else 100
        made.end(ended, OutcomeKind.COMPLETED, 0.01 * step, output)
        tokens[ended[0]] += 100 + 2 * output
    assert tokens["b"] / tokens.total() == pytest.approx(1 / 3, abs=0.03)


def test_no_request_is_held_back_while_a_slot_is_free():
    made = build("robust-edf")
    for number in range(1000):
        made.submit(request(number, "a"), believed(), 0.0)
    assert len(made.dispatch(0.0)) == SLOTS
    served(made, 50)
    made.dispatch(2.9)
    # Another tenant comes after a pause: it is not owed what it did not use, and does not wait for what a got meanwhile.
    made.submit(request(0, "b"), believed(), 3.0)
    made.end(made.running_ids()[0], OutcomeKind.COMPLETED, 3.0, 100)
    assert [one.entry.request.tenant for one in made.dispatch(3.0)] == ["b"]


def test_the_share_holds_through_changes_of_policy_and_weight():
    made = build("robust-edf")
    made.set_weights({"b": 2.0})
    for number in range(1500):
        made.submit(request(number, "a"), believed(), 0.0)
        made.submit(request(number, "b"), believed(), 0.0)
    found: Counter[str] = Counter()
    for policy in ("wfq", "fcfs", "two-lane", "vtc", "robust-edf", "cfs"):
        made.set_policy(policy, 0.0)
        found += served(made, 50)
    assert found["b"] / found.total() == pytest.approx(2 / 3, abs=0.05)
    made.set_weights({"b": 4.0})
    found = served(made, 300)
    assert found["b"] / found.total() == pytest.approx(0.8, abs=0.03)


def test_overdue_requests_are_shared_by_weight_too():
    made = build("robust-edf")
    made.set_weights({"b": 3.0})
    for number in range(400):
        for tenant in "ab":
            made.submit(request(number, tenant), believed(ttft_ms=10.0), 0.0)
    while made.snapshot(5.0, "g").overdue < 800:
        made.sweep(5.0)
    found: Counter[str] = Counter()
    for step in range(200):
        found.update(one.entry.request.tenant for one in made.dispatch(5.0 + 0.01 * step))
        made.end(made.running_ids()[0], OutcomeKind.COMPLETED, 5.0 + 0.01 * step, 100)
    assert found["b"] / found.total() == pytest.approx(0.75, abs=0.03)


class _Counting(Fcfs):
    """Counts how often it is asked."""

    calls = 0

    def pop(self, now_s):
        _Counting.calls += 1
        return super().pop(now_s)

    def push(self, entry, now_s):
        _Counting.calls += 1
        super().push(entry, now_s)


def test_a_decision_costs_the_same_however_many_wait(heap_work: HeapWork):
    for waiting in (100, 10_000):
        accounts = TenantAccounts()
        accounts.own |= set("abc")
        queues = TenantQueues(_Counting({}), accounts)
        for number in range(waiting):
            for tenant in "abc":
                queues.push(entry(number, tenant), 0.0)
        _Counting.calls = 0
        moves = heap_work.moves
        for _ in range(100):
            assert queues.pop(0.0) is not None
        assert _Counting.calls == 100
        assert heap_work.moves - moves <= 400
        assert len(queues) == 3 * waiting - 100


steps = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "pop", "undo", "discard", "rekey", "overdue", "finish", "load"]), st.integers(0, 400)
    ),
    max_size=80,
)


@pytest.mark.parametrize("policy", list(POLICIES))
@settings(max_examples=25, deadline=None)
@given(script=steps)
def test_one_tenant_alone_is_ordered_as_the_policy_orders_it(policy: str, script):
    plain, shared = make_policy(policy), sharing(make_policy(policy), TenantAccounts())
    waiting: dict[str, QueueEntry] = {}
    out: list[QueueEntry] = []
    for number, (step, pick) in enumerate(script):
        now_s = 0.1 * number
        if step == "push":
            one = entry(number, "a", output=float(1 + pick), prompt=1 + pick, session=f"s{pick % 3}", priority=pick % 3, at_s=now_s)
            waiting[one.request.id] = one
            for queue in (plain, shared):
                queue.push(one, now_s)
        elif step == "pop":
            mine, theirs = plain.pop(now_s), shared.pop(now_s)
            assert mine is theirs
            if mine is not None:
                del waiting[mine.request.id]
                out.append(mine)
        elif step == "undo" and out:
            one = out.pop()
            waiting[one.request.id] = one
            for queue in (plain, shared):
                queue.undo_pop(one, now_s)
        elif step == "discard" and waiting:
            name = sorted(waiting)[pick % len(waiting)]
            assert plain.discard(name) is shared.discard(name) is waiting.pop(name)
        elif step in {"rekey", "overdue"} and waiting:
            one = waiting[sorted(waiting)[pick % len(waiting)]]
            one.estimates = believed(float(1 + pick), ttft_ms=100.0 + pick)
            for queue in (plain, shared):
                (queue.rekey if step == "rekey" else queue.on_overdue)(one, now_s)
        elif step == "finish" and out:
            one = out.pop(0)
            for queue in (plain, shared):
                queue.on_finished(one, pick, now_s)
        elif step == "load":
            plain, shared = make_policy(policy), sharing(make_policy(policy), TenantAccounts())
            for queue in (plain, shared):
                queue.load(sorted(waiting.values(), key=lambda one: one.seq), now_s)
        assert len(plain) == len(shared) == len(waiting)
        assert plain.cost_threshold == shared.cost_threshold
        for name in sorted(waiting)[:3]:
            assert plain.rank(name) == shared.rank(name)
    assert [plain.pop(100.0) for _ in range(len(waiting) + 1)] == [shared.pop(100.0) for _ in range(len(waiting) + 1)]


def test_what_is_taken_back_is_not_charged():
    accounts = TenantAccounts()
    accounts.own |= set("ab")
    queues = TenantQueues(make_policy("fcfs"), accounts)
    for number in range(10):
        queues.push(entry(2 * number, "a"), 0.0)
        queues.push(entry(2 * number + 1, "b"), 0.0)
    passed = [known(queues.pop(0.0)) for _ in range(5)]
    for one in reversed(passed):
        queues.undo_pop(one, 0.0)
    assert sorted(known(queues.pop(0.0)).seq for _ in range(4)) == [0, 1, 2, 3]


def nothing(_now_s: float) -> float:
    """Engines that have served nothing yet."""
    return 0.0


def test_the_accounts_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_queues, "TENANTS_KEPT", 50)
    monkeypatch.setattr(tenant_accounts, "TENANTS_KEPT", 50)
    accounts = TenantAccounts()
    queues = TenantQueues(make_policy("robust-edf"), accounts)

    def come(number: int, name: str, weight: float) -> None:
        one = entry(number, name, weight=weight)
        accounts.asks(one, 0.2 * number)
        accounts.look(1, 0.2 * number, nothing)
        queues.push(one, 0.2 * number)

    for number in range(500):
        # Weights differ, so every tenant gets a queue of its own.
        come(number, f"t{number}", 1.0 + number % 2)
        assert known(queues.pop(0.2 * number)).request.tenant == f"t{number}"
    assert max(len(accounts.watch.demands), len(accounts.own), len(accounts.known) - 1, len(queues.queues) - 1) <= 51
    for number in range(100):
        come(1000 + number, f"w{number}", 1.0 + number % 2)
    # Tenants that wait are not forgotten.
    assert len({known(queues.pop(1000.0)).request.tenant for _ in range(100)}) == 100


def test_more_tenants_than_are_kept_change_the_policy_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_queues, "TENANTS_KEPT", 50)
    monkeypatch.setattr(tenant_accounts, "TENANTS_KEPT", 50)
    accounts = TenantAccounts()
    before, after = (TenantQueues(make_policy(policy), accounts) for policy in ("fcfs", "edf"))
    for number in range(100):
        # Weights differ, so every tenant gets a queue of its own.
        one = entry(number, f"t{number}", weight=1.0 + number % 2)
        accounts.asks(one, 0.0)
        accounts.look(number, 0.0, nothing)
        before.push(one, 0.0)
    after.load(list(before.entries()), 1.0)
    before.leave()
    assert len(after) == 100
    assert {known(after.pop(1.0)).request.tenant for _ in range(100)} == {f"t{number}" for number in range(100)}


def test_tenants_that_do_not_flood_are_ordered_by_the_policy_together():
    accounts = TenantAccounts()
    plain, shared = make_policy("edf"), TenantQueues(make_policy("edf"), accounts)
    for number in range(300):
        one = entry(number, "abc"[number % 3], output=float(1 + number * 37 % 200), at_s=0.1 * number)
        accounts.asks(one, 0.1 * number)
        accounts.look(1, 0.1 * number, nothing)
        for queue in (plain, shared):
            queue.push(one, 0.1 * number)
        if number > 20:
            assert plain.pop(0.1 * number) is shared.pop(0.1 * number)
    assert not accounts.own


def test_a_tenant_that_floods_is_ordered_by_itself_until_it_asks_for_less_than_its_share():
    accounts = TenantAccounts()
    queues = TenantQueues(make_policy("edf"), accounts)
    number = 0

    def run(flood: int, start_s: float) -> None:
        nonlocal number
        for step in range(100):
            now_s = start_s + 0.1 * step
            for name in [*(["a"] * flood), "b"]:
                number += 1
                one = entry(number, name, at_s=now_s)
                accounts.asks(one, now_s)
                accounts.look(1, now_s, nothing)
                queues.push(one, now_s)
            for _ in range(2):
                if (popped := queues.pop(now_s)) is not None:
                    accounts.watch.sent(popped, now_s)

    run(1, 0.0)
    assert accounts.own == set()
    run(10, 10.0)
    assert accounts.own == {"a"}
    waiting = [one.request.tenant for one in queues.entries()]
    assert waiting.count("b") <= 12
    assert waiting.count("a") > 500
    assert len(queues) == len(waiting)
    for one in list(queues.entries()):
        assert queues.discard(one.request.id) is one
    run(1, 60.0)
    assert accounts.own == set()


def test_a_lowered_weight_does_not_outlive_its_end():
    accounts = TenantAccounts()
    queues = TenantQueues(make_policy("fcfs"), accounts)
    accounts.separate(["a", "b"], 0.0)
    for number in range(40):
        for tenant in ("a", "b"):
            one = entry(10 * number + (tenant == "b"), tenant)
            one.weight = 0.01 if tenant == "b" else 1.0
            accounts.asks(one, 0.0)
            queues.push(one, 0.0)
    accounts.reweigh({"b": 0.01})
    served = [known(queues.pop(0.0)).request.tenant for _ in range(4)]
    assert served.count("b") == 1
    for one in queues.entries():
        one.weight = 1.0
    accounts.reweigh({"b": 1.0})
    assert {name: demand.weight for name, demand in accounts.watch.demands.items()} == {"a": 1.0, "b": 1.0}
    then = [known(queues.pop(0.0)).request.tenant for _ in range(8)]
    assert 3 <= then.count("b") <= 5, "what it got with the low weight is no debt"


@pytest.mark.parametrize("gets", [True, False])
def test_a_request_that_ends_after_its_tenant_got_or_gave_up_a_queue_of_its_own_frees_its_lane(gets: bool):
    accounts = TenantAccounts()
    queues = TenantQueues(make_policy("two-lane", {"threshold_ms": 100_000.0, "fast_running": 1.0}), accounts)
    if not gets:
        accounts.separate(["a"], 0.0)
    for ran in (entry(0, "b"), entry(1, "a")):
        queues.push(ran, 0.0)
    popped = [known(queues.pop(0.0)) for _ in range(2)]
    if gets:
        accounts.separate(["a"], 0.0)
    else:
        accounts.own.discard("a")
    for ran in popped:
        queues.on_finished(ran, 10, 1.0)
    lanes = [one.queue for one in queues.queues.values() if isinstance(one.queue, TwoLane)]
    assert len(lanes) == 2
    # Nothing runs, so the fast lane of either has its place free beside a slow request that waits.
    for queue in lanes:
        queue.push(entry(10, "x", output=100.0), 1.0)
        queue.push(entry(11, "x", output=100_000.0), 1.0)
        assert known(queue.pop(1.0)).request.id == "x000010"


def test_policies_that_share_by_weight_themselves_are_left_to_it():
    assert {name for name in POLICIES if sharing(make_policy(name), TenantAccounts()).name == name} == {"wfq", "vtc", "stride", "lottery"}
