"""Quotas through the door: refusal, headers, metrics and status."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from gateway_kit import FAST, MODEL, eventually, key_hash, running

from controller.config.schema import SchedulerConfig, TenantConfig
from controller.gateway.ratelimits import ratelimit_headers
from controller.scheduling.tenancy import RateState


def ask(text="hello", cap=10):
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": cap}


TENANTS = {
    "acme": TenantConfig(key_sha256=[key_hash("sk-acme")], tokens_per_minute=600, burst_tokens=60),
    "zeta": TenantConfig(key_sha256=[key_hash("sk-zeta")], requests_per_minute=2),
}


async def test_a_used_up_quota_gets_429_with_the_time_at_which_it_fits(tmp_path: Path):
    async with running(tmp_path, tenants=TENANTS) as rig:
        headers = {"x-gateway-inference-fairness-id": "acme"}
        first = await rig.post(ask("word " * 80, cap=5), headers=headers)
        refused = await rig.post(ask(), headers=headers)
        other = await rig.post(ask(), headers={"x-gateway-inference-fairness-id": "someone"})
        metrics = (await rig.get("/metrics")).body.decode()
        status = (await rig.admin("GET", "/admin/status")).json
        assert rig.balanced()
    assert (first.status, other.status) == (200, 200)
    assert first.headers["x-ratelimit-limit-tokens"] == "600"
    assert "x-ratelimit-limit-tokens" not in other.headers
    assert (refused.status, refused.error["code"], refused.error["type"]) == (429, "tenant_quota", "rate_limit_error")
    assert "600 tokens per minute" in refused.error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert (refused.headers["x-ratelimit-limit-tokens"], refused.headers["x-ratelimit-remaining-tokens"]) == ("600", "0")
    assert refused.headers["x-ratelimit-reset-tokens"].endswith("s")
    assert 'hmas_tenant_tokens_total{direction="output",tenant="acme"} 5.0' in metrics
    assert "hmas_fairness_jain_ratio 1.0" in metrics
    assert status["fairness"]["jain"] == 1.0


async def test_in_a_full_queue_the_worst_makes_way_and_is_told(tmp_path: Path):
    one_at_a_time = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02, queue_limit=2)
    # So slow that the first request holds its slot however long the machine takes over the rest.
    async with running(tmp_path, scheduler=one_at_a_time, profile=msgspec.structs.replace(FAST, step_ms=100.0)) as rig:
        long = asyncio.create_task(rig.post(ask(cap=3500)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        waiting = [asyncio.create_task(rig.post({**ask(f"waits {number}"), "priority": 5})) for number in range(2)]
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 2)
        better = asyncio.create_task(rig.post(ask("matters")))
        await eventually(lambda: any(task.done() for task in waiting))
        (given_up,) = [task.result() for task in waiting if task.done()]
        worse = await rig.post({**ask("too late"), "priority": 9})
        assert rig.gateway.scheduler.counts().queued == 2
        for task in (long, better, *waiting):
            task.cancel()
        await asyncio.gather(long, better, *waiting, return_exceptions=True)
        await eventually(lambda: not rig.gateway.desk.lives)
        assert rig.balanced()
        ended = [completion.outcome.value for completion in await rig.completions()]
    assert (given_up.status, given_up.error["code"], given_up.error["type"]) == (429, "outranked", "rate_limit_error")
    assert 1 <= int(given_up.headers["retry-after"]) <= 60
    assert (worse.status, worse.error["code"]) == (429, "queue_full")
    assert sorted(ended) == ["cancelled", "cancelled", "cancelled", "rejected", "shed"]


@pytest.mark.parametrize(
    ("reset_s", "text"), [(0.0, "0s"), (0.0123, "13ms"), (1.0, "1s"), (12.34, "12.4s"), (72.5, "1m12.5s"), (3600.0, "1h0m0s")]
)
def test_spans_are_written_as_openai_writes_them(reset_s, text):
    told = ratelimit_headers({"tokens": RateState(limit=5, remaining=3, reset_s=reset_s)})
    assert told == {"x-ratelimit-limit-tokens": "5", "x-ratelimit-remaining-tokens": "3", "x-ratelimit-reset-tokens": text}


async def test_output_that_is_insisted_on_and_cannot_fit_is_refused_at_the_door(tmp_path: Path):
    small = msgspec.structs.replace(FAST, kv_blocks=64, max_model_len=1024)
    async with running(tmp_path, profile=small) as rig:
        generous = await rig.post(ask(cap=900))
        insisting = await rig.post({**ask(cap=5000), "min_tokens": 4000})
        assert rig.balanced()
    assert generous.status == 200
    assert (insisting.status, insisting.error["code"]) == (400, "context_length_exceeded")
    assert "x-hmas-instance" not in insisting.headers
