"""A tenant that floods the gateway does not take the other's share: real HTTP, an embedded engine, the default policy."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gateway_kit import FAST, Rig, chat, key_hash, running

from hmas.cli.explain import page as trace_page
from hmas.cli.status import page
from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.config.section import TenantConfig

SLOTS, STEP_MS, TOKENS = 8, 40.0, 25
ENGINE = msgspec.structs.replace(FAST, step_ms=STEP_MS, max_num_seqs=SLOTS)
CAPACITY_RPS = SLOTS * 1000.0 / (STEP_MS * TOKENS)
SPAN_S = 8.0
SLO = {"x-slo-ttft-ms": "4000", "x-slo-tpot-ms": "120"}


def tenants(weight: float) -> dict[str, TenantConfig]:
    return {"gold": TenantConfig(key_sha256=[key_hash("g")], weight=weight), "free": TenantConfig(key_sha256=[key_hash("f")])}


async def send(rig: Rig, tenant: str, rps: float, seed: int) -> None:
    """Poisson arrivals of one tenant over the span; waits for all answers."""
    draws = np.random.default_rng(seed)
    headers = {"x-gateway-inference-fairness-id": tenant, **SLO}
    loop = asyncio.get_running_loop()
    at_s = loop.time()
    until_s = at_s + SPAN_S
    asked = []
    while (at_s := at_s + draws.exponential(1.0 / rps)) < until_s:
        await asyncio.sleep(at_s - loop.time())
        asked.append(asyncio.create_task(rig.post(chat(tokens=TOKENS), headers=headers)))
    await asyncio.gather(*asked)


async def measured(folder: Path, weight: float, *, flood_rps: float, gold_rps: float) -> tuple[dict, dict, str, str]:
    """The status of gold and free after the span, the page as an operator sees it meanwhile, and the metrics."""
    scheduler = SchedulerConfig(n_run=SLOTS, tick_s=0.02)
    async with running(folder, profile=ENGINE, tenants=tenants(weight), scheduler=scheduler) as rig:
        load = [asyncio.create_task(send(rig, "gold", gold_rps, 1))]
        if flood_rps:
            load.append(asyncio.create_task(send(rig, "free", flood_rps, 2)))
        await asyncio.wait(load, timeout=0.8 * SPAN_S)
        seen = page((await rig.admin("GET", "/admin/status")).json)
        await load[0]
        status = (await rig.admin("GET", "/admin/status")).json
        metrics = (await rig.get("/metrics")).body.decode()
        rig.hurry.set()
        rig.stop.set()
        await asyncio.gather(*load, return_exceptions=True)
    found = {one["name"]: one for one in status["tenants"]}
    return found["gold"], found["free"], seen, metrics


@pytest.mark.slow
@pytest.mark.parametrize("weight", [4.0, pytest.param(1.0, marks=pytest.mark.long)])
async def test_a_flood_leaves_the_other_tenant_what_it_has_alone(tmp_path: Path, weight: float):
    share = weight / (1.0 + weight)
    gold_rps, flood_rps = 0.6 * share * CAPACITY_RPS, 10.0 * (1.0 - share) * CAPACITY_RPS
    alone, *_ = await measured(tmp_path / "alone", weight, flood_rps=0.0, gold_rps=gold_rps)
    gold, free, seen, metrics = await measured(tmp_path / "flood", weight, flood_rps=flood_rps, gold_rps=gold_rps)
    assert alone["goodput"]["goodput_rate"] > 0.9
    assert gold["goodput"]["goodput_rate"] >= 0.97 * alone["goodput"]["goodput_rate"]
    # The rest is the other's: it uses what gold leaves.
    assert free["service_share"] > 1.0 - share
    line = next(line for line in seen.splitlines() if line.startswith("gold "))
    assert f" {gold['weight_share']:.0%} " in line
    assert any(line.startswith("free ") for line in seen.splitlines())
    assert any(line.startswith("flood     free asks for more than") for line in seen.splitlines()), seen
    assert "worst: gold" not in seen
    assert 'hmas_ttft_seconds_count{tenant="gold"}' in metrics
    assert f'hmas_tenant_weight{{tenant="gold"}} {weight}' in metrics


async def test_a_tenant_that_is_not_configured_is_listed_and_explained_too(tmp_path: Path):
    async with running(tmp_path, tenants=tenants(4.0)) as rig:
        first = await rig.post(chat(tokens=3), headers={"x-gateway-inference-fairness-id": "gold"})
        other = await rig.post(chat(tokens=3), headers={"x-gateway-inference-fairness-id": "someone"})
        status = (await rig.admin("GET", "/admin/status")).json
        trace = (await rig.admin("GET", f"/admin/requests/{other.headers['x-request-id']}")).json
    assert (first.status, other.status) == (200, 200)
    assert [one["name"] for one in status["tenants"]] == ["free", "gold", "someone"]
    shown = {one["name"]: one for one in status["tenants"]}
    assert (shown["gold"]["weight_share"], shown["someone"]["weight_share"], shown["free"]["weight_share"]) == (0.8, 0.2, 0.0)
    assert shown["gold"]["service_share"] + shown["someone"]["service_share"] == pytest.approx(1.0)
    assert min(shown["gold"]["service_share"], shown["someone"]["service_share"]) > 0.0
    assert "tenant    someone in the last minute: 1 of 1 in time, " in trace_page(trace)
