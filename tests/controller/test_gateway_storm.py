"""Conservation: whatever clients, engines, agents and operators do, every request has exactly one outcome."""

import asyncio
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from gateway_kit import Rig, chat, eventually, gateway_config, running, start_sim

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.core.messages import ControlAction, MetaDecision
from hmas.controller.core.types import OutcomeKind
from hmas.controller.scheduling.policies.registry import POLICIES

pytestmark = pytest.mark.slow

NAMES = list(POLICIES)


async def one(rig: Rig, rng: np.random.Generator, seen: list[str]) -> None:
    """A client in a mood: patient or not, streaming or not, now and then malformed."""
    body = chat(f"prompt {rng.integers(1000)} " * int(rng.integers(1, 30)), tokens=int(rng.integers(1, 80)), stream=bool(rng.integers(2)))
    if rng.random() < 0.05:
        body["messages"] = "oops"
    try:
        async with asyncio.timeout(0.005 + rng.exponential(0.2) if rng.random() < 0.4 else 20):
            answer = await rig.post(body, headers={"x-slo-ttft-ms": str(int(rng.integers(100, 3000)))})
            seen.append(f"status {answer.status}")
    except (TimeoutError, aiohttp.ClientError) as error:
        seen.append(type(error).__name__)


async def meddle(rig: Rig, rng: np.random.Generator) -> None:
    """Agents and operators who cannot make up their minds."""
    for number in range(40):
        now_s = rig.gateway.clock.now_s()
        policy = NAMES[int(rng.integers(len(NAMES)))]
        rig.bus.post(MetaDecision(sent_s=now_s, decision_id=str(number), policy=policy, previous="", bypass=bool(rng.random() < 0.1)))
        n_run, budget = int(rng.integers(1, 20)), int(rng.integers(0, 600))
        rig.bus.post(ControlAction(sent_s=now_s, instance=f"sim-{rng.integers(1, 3)}", n_run=n_run, token_budget=budget))
        rig.gateway.scheduler.check_conservation()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_storm_loses_nobody(tmp_path: Path, seed: int):
    rng = np.random.default_rng(seed)
    settings = SchedulerConfig(policy="edf", n_run=6, tick_s=0.02, queue_limit=60, overdue="shed")
    async with running(tmp_path, engines=2, scheduler=settings, gateway=gateway_config(request_timeout_s=2.0)) as rig:
        seen: list[str] = []
        meddling = asyncio.create_task(meddle(rig, rng))
        clients = []
        for number in range(200):
            clients.append(asyncio.create_task(one(rig, rng, seen)))
            if number == 100:
                port = rig.sims[1].port
                await rig.sims[1].kill()
                rig.sims.append(await start_sim("sim-2", port=port))
            await asyncio.sleep(rng.exponential(0.002))
        await asyncio.gather(*clients, meddling)
        await eventually(lambda: not rig.gateway.manager.active)
        assert rig.balanced()
        completions = await rig.completions()
        counts = rig.gateway.scheduler.counts()
        await eventually(lambda: all(sim.model.idle for sim in (rig.sims[0], rig.sims[2])))
    assert len(seen) == 200
    assert len(completions) == len({completion.request_id for completion in completions}) == counts.arrived, f"seed {seed}"
    ended = {kind: sum(completion.outcome is kind for completion in completions) for kind in OutcomeKind}
    assert ended == {kind: counts.ended.get(kind, 0) for kind in OutcomeKind}
    assert ended[OutcomeKind.COMPLETED] > 20
    assert ended[OutcomeKind.CANCELLED] > 5
    assert "status 400" in seen
