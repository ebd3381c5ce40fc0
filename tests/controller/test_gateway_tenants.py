"""Quotas through the door: refusal, headers, metrics and status."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import orjson
import pytest
from gateway_kit import FAST, MODEL, Rig, eventually, key_hash, running

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.config.section import TenantConfig
from hmas.controller.gateway.requests import embeddings
from hmas.controller.gateway.requests.response_headers import ratelimit_headers
from hmas.controller.scheduling.admission.quotas import RateState


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


async def test_embeddings_count_in_the_requests_per_minute_and_no_tenant_takes_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    headers = {"x-gateway-inference-fairness-id": "zeta"}
    document = {"model": MODEL, "input": "words"}
    async with running(tmp_path, tenants=TENANTS) as rig:
        answers = [await rig.post(document, "/v1/embeddings", headers=headers) for _ in range(3)]
        chat = await rig.post(ask(), headers=headers)
        counted = await rig.post(ask(), "/v1/messages/count_tokens", headers=headers)
        monkeypatch.setattr(embeddings, "MAX_PASSING_EACH", 0)
        full = await rig.post(document, "/v1/embeddings")
        metrics = (await rig.get("/metrics")).body.decode()
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert (answers[2].error["code"], chat.status) == ("tenant_quota", 429)
    assert "2 requests per minute" in answers[2].error["message"]
    assert counted.status == 200
    assert (full.status, full.error["code"]) == (429, "too_many_requests")
    assert "of tenant" in full.error["message"]
    assert 'hmas_passthrough_requests_total{status="429"} 2.0' in metrics


def held(expires_s: float | None = None, **limits: float) -> bytes:
    expires = None if expires_s is None else datetime.fromtimestamp(expires_s, UTC).isoformat()
    return orjson.dumps({"version": 1, "author": "ana", "reason": "a run-away job", "expires": expires, "tenants": {"acme": limits}})


def put(rig: Rig, document: bytes) -> None:
    """As an operator's editor does it: written aside, then moved."""
    rig.overrides.mkdir(exist_ok=True)
    aside = rig.overrides / ".quota.part"
    aside.write_bytes(document)
    aside.rename(rig.overrides / "quota.json")


async def test_a_quota_by_override_file_holds_is_told_and_ends_with_its_time(tmp_path: Path):
    headers = {"x-gateway-inference-fairness-id": "acme"}
    async with running(tmp_path) as rig:
        before = await rig.post(ask(), headers=headers)
        put(rig, held(rig.gateway.clock.now_s() + 1.5, requests_per_minute=1, max_running=4))
        await eventually(lambda: rig.gateway.scheduler.rates("acme", rig.gateway.clock.now_s()))
        first = await rig.post(ask(), headers=headers)
        refused = await rig.post(ask(), headers=headers)
        (shown,) = (await rig.admin("GET", "/admin/status")).json["tenants"]
        # Released by its time, not by anybody.
        await eventually(lambda: not rig.gateway.scheduler.rates("acme", rig.gateway.clock.now_s()))
        after = await rig.post(ask(), headers=headers)
        changes = [
            (event["before"], event["after"], event["source"], event["reason"]) for event in rig.events("tenant.requests_per_minute")
        ]
        assert rig.balanced()
    assert [answer.status for answer in (before, first, refused, after)] == [200, 200, 429, 200]
    assert refused.error["code"] == "tenant_quota"
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert shown["held"] == ["requests_per_minute", "max_running"]
    assert (shown["name"], shown["weight"], shown["max_running"], shown["quotas"]["requests"]["remaining"]) == ("acme", 1.0, 4, 0)
    assert changes == [("0", "1", "operator", "ana: quota: a run-away job"), ("1", "0", "operator", "released")]


async def test_a_limit_by_override_replaces_that_limit_alone_and_a_bad_file_none(tmp_path: Path):
    async with running(tmp_path, tenants=TENANTS) as rig:
        scheduler = rig.gateway.scheduler
        put(rig, held(tokens_per_minute=60_000))
        await eventually(lambda: scheduler.rates("acme", rig.gateway.clock.now_s())["tokens"].limit == 60_000)
        # The burst is the configured one still, and as full as it was.
        assert scheduler.rates("acme", rig.gateway.clock.now_s())["tokens"].remaining == 60
        put(rig, held(tokens_per_minute=0, burst_tokens=5))
        await eventually(lambda: rig.gateway.watch.errors)
        assert "$.tenants.acme.burst_tokens: got 5 where the tenant has no tokens_per_minute" in rig.gateway.watch.errors["quota.json"]
        assert scheduler.rates("acme", rig.gateway.clock.now_s())["tokens"].limit == 60_000
        (rig.overrides / "quota.json").unlink()
        await eventually(lambda: scheduler.rates("acme", rig.gateway.clock.now_s())["tokens"].limit == 600)


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
        await eventually(lambda: not rig.gateway.manager.active)
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
