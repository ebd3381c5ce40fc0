"""How much of a tenant may wait: requests, and the bytes of their bodies."""

import asyncio
from pathlib import Path

import pytest
from gateway_kit import Answer, Rig, chat, eventually, key_hash, running

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.config.section import TenantConfig
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import NO_LIMITS, TenantLimits
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import BODY_BYTES_WAITING_MOST, InstanceSpec, SchedulerSettings

ESTIMATES = Estimates(slo=Slo(ttft_ms=600_000, tpot_ms=100))


def build(limits: TenantLimits = NO_LIMITS, **more) -> Scheduler:
    specs = [InstanceSpec(name="i0", capacity_n_run=1), InstanceSpec(name="i1", capacity_n_run=1)]
    made = Scheduler(
        settings=SchedulerSettings(**more), instances=specs, router=make_router("least-loaded"), policy="fcfs", tenants={"a": limits}
    )
    made.set_controls("i0", Controls(n_run=1))
    made.set_draining("i1", True)
    return made


def submit(made: Scheduler, number: int, tenant: str = "a", body_bytes: int = 1000, **more) -> Refusal | None:
    request = Request(id=f"{number:06d}", tenant=tenant, model="m", arrival_s=0.0, prompt_tokens=10, body_bytes=body_bytes, **more)
    answer = made.submit(request, ESTIMATES, 0.0)
    return answer if isinstance(answer, Refusal) else None


def test_more_requests_than_may_wait_are_refused_with_the_limit():
    made = build(TenantLimits(max_queued=2))
    assert [submit(made, number) for number in range(2)] == [None, None]
    refusal = submit(made, 2)
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.kind) == (429, "tenant_quota", OutcomeKind.REJECTED)
    assert "2 requests of tenant 'a' wait already" in refusal.message
    assert "max_queued is 2" in refusal.message
    assert refusal.retry_after_s >= 1.0
    assert submit(made, 3, "b") is None, "the limit of one tenant is no other's"
    made.dispatch(0.0)
    assert submit(made, 4) is None, "what runs does not wait"
    made.check_conservation()


def test_more_bytes_than_may_wait_are_refused_with_the_limit():
    made = build(TenantLimits(max_body_bytes_waiting=2500, requests_per_minute=10))
    assert submit(made, 0, body_bytes=9000) is None, "one body may always wait"
    refusal = submit(made, 1)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (429, "tenant_quota")
    assert "9000 bytes of bodies of tenant 'a' wait already and this request has 1000" in refusal.message
    assert "max_body_bytes_waiting is 2500" in refusal.message
    assert made.rates("a", 0.0)["requests"].remaining == 9, "a refusal is not charged"
    made.end("000000", OutcomeKind.CANCELLED, 0.0)
    assert [submit(made, number) is None for number in range(2, 6)] == [True, True, False, False]


def test_a_tenant_without_a_configuration_has_the_default():
    made = build()
    half = BODY_BYTES_WAITING_MOST // 2
    assert [submit(made, number, "nobody", half) is None for number in range(3)] == [True, True, False]
    made.set_limits("nobody", TenantLimits(max_body_bytes_waiting=0), 0.0)
    assert submit(made, 3, "nobody", half) is None


def test_a_limit_that_comes_later_counts_what_waits():
    made = build()
    for number in range(5):
        assert submit(made, number) is None
    made.set_limits("a", TenantLimits(max_queued=4), 0.0)
    assert submit(made, 5) is not None
    made.set_limits("a", NO_LIMITS, 0.0)
    assert submit(made, 5) is None


def test_whatever_becomes_of_a_waiting_request_it_waits_no_more():
    made = build(queue_limit=4)
    for number in range(4):
        submit(made, number)
    assert submit(made, 4, priority=-1) is None
    assert [one.entry.request.id for one in made.outranked()] == ["000003"]
    (started,) = made.dispatch(0.0)
    assert started.entry.request.id == "000000"
    made.set_draining("i1", False)
    assert made.retry("000000", 0.0)
    made.end("000001", OutcomeKind.CANCELLED, 0.0)
    waiting = made.tenancy.waiting
    assert waiting == {"a": (3, 3000)}
    for number, request_id in enumerate(list(made.queued_ids())):
        made.end(request_id, OutcomeKind.CANCELLED, float(number))
    assert waiting == {}
    submit(made, 7, deadline_s=5.0)
    assert len(made.expire(6.0)) == 1
    assert waiting == {}
    made.check_conservation()


async def waiting(rig: Rig, number: int, *, text: str = "waits", **kwargs) -> list["asyncio.Task[Answer]"]:
    tasks = [asyncio.create_task(rig.post(chat(text), **kwargs)) for _ in range(number)]
    await eventually(lambda: rig.gateway.scheduler.counts().queued == number)
    return tasks


@pytest.mark.parametrize(
    ("limits", "says"),
    [({"max_queued": 2}, "max_queued is 2"), ({"max_body_bytes_waiting": 9000}, "max_body_bytes_waiting is 9000")],
)
async def test_a_flood_of_one_tenant_leaves_the_queue_to_the_others(tmp_path: Path, limits: dict[str, int], says: str):
    tenants = {"flood": TenantConfig(key_sha256=[key_hash("sk-flood")], **limits)}
    async with running(tmp_path, tenants=tenants, scheduler=SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)) as rig:
        headers = {"x-gateway-inference-fairness-id": "flood"}
        long = asyncio.create_task(rig.post(chat("long", tokens=3500)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        tasks = await waiting(rig, 2, text="x" * 4000, headers=headers)
        refused = await rig.post(chat("x" * 4000), headers=headers)
        other = asyncio.create_task(rig.post(chat("another's")))
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 3)
        for task in (long, other, *tasks):
            task.cancel()
        await asyncio.gather(long, other, *tasks, return_exceptions=True)
        await eventually(lambda: not rig.gateway.manager.active)
        assert rig.balanced()
    assert (refused.status, refused.error["code"], refused.error["type"]) == (429, "tenant_quota", "rate_limit_error")
    assert says in refused.error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
