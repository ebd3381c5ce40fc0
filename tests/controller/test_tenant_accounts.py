"""Which tenants count where service is shared by weight, and what that costs."""

from collections import Counter

import pytest

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
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
