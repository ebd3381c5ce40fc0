"""Which tenants count where service is shared by weight, and what that costs."""

from collections import Counter

import pytest

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policies.registry import make_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.flood_watch import TENANTS_KEPT
from hmas.controller.scheduling.queue.tenant_accounts import TenantAccounts
from hmas.controller.scheduling.queue.tenant_queues import TenantQueues
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

BELIEVED = Estimates(slo=Slo(ttft_ms=600_000, tpot_ms=100), output_tokens=100, output_tokens_upper=200, ttft_ms=50, tpot_ms=10)


def request(number: int, tenant: str, at_s: float = 0.0) -> Request:
    return Request(id=f"{tenant}{number:06d}", tenant=tenant, model="m", arrival_s=at_s, prompt_tokens=100)


def build(policy: str = "fcfs") -> Scheduler:
    spec = InstanceSpec(name="i", capacity_n_run=8)
    made = Scheduler(settings=SchedulerSettings(fence=False), instances=[spec], router=make_router("least-loaded"), policy=policy)
    made.set_controls("i", Controls(n_run=8))
    return made


def turn(made: Scheduler, now_s: float) -> list[str]:
    """Dispatches, and ends the oldest in flight: the tenants of what was dispatched."""
    sent = [one.entry.request.tenant for one in made.dispatch(now_s)]
    made.end(made.running_ids()[0], OutcomeKind.COMPLETED, now_s, 100)
    return sent


def test_what_a_tenant_left_waiting_when_it_stopped_asking_counts_by_its_weight():
    made = build()
    made.set_weights({"b": 4.0})
    for number in range(1500):
        made.submit(request(number, "a"), BELIEVED, 0.0)
    for step in range(1000):
        turn(made, 0.05 * step)
    found: Counter[str] = Counter()
    for step in range(1000, 1200):
        made.submit(request(step, "b", 0.05 * step), BELIEVED, 0.05 * step, 4.0)
        found.update(turn(made, 0.05 * step))
    assert found["b"] / found.total() == pytest.approx(0.8, abs=0.05)
    made.check_conservation()


class _Counting(TenantQueues):
    """Counts how often it is asked for a tenant's requests."""

    asked = 0

    def holds(self, tenant: str) -> bool:
        self.asked += 1
        return super().holds(tenant)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_tenant_that_has_not_asked_lately_costs_the_same_however_many_there_are(waiting: bool):
    accounts = TenantAccounts()
    queues = _Counting(make_policy("fcfs"), accounts)
    for number in range(3 * TENANTS_KEPT):
        one = QueueEntry(request(number, f"t{number}", 0.001 * number), BELIEVED, seq=number)
        if waiting:
            accounts.separate([one.request.tenant], 0.0)
            queues.push(one, 0.0)
        accounts.asks(one, 0.001 * number)
        if not waiting:
            assert len(accounts.watch.demands) <= TENANTS_KEPT
    assert 0 < queues.asked <= 20 * TENANTS_KEPT
    assert f"t{number}" in accounts.watch.demands
