"""A gateway on a real Redis server that goes away and comes back."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from gateway_kit import chat, eventually, running

from controller.bus.embedded import EmbeddedServer
from controller.bus.redis_bus import RedisBus
from controller.core.messages import OVERRIDES, TELEMETRY, Completion, MetaDecision, OverrideNotice


async def completions(bus: RedisBus) -> list[Completion]:
    return [message for message in await bus.latest(TELEMETRY, 20_000) if isinstance(message, Completion)]


async def test_redis_goes_away_and_comes_back_under_load(tmp_path: Path):
    folder = tmp_path / "bus"
    server = EmbeddedServer(folder, durable=False)
    bus: Any = RedisBus(await asyncio.to_thread(server.start))
    try:
        async with running(tmp_path, bus=bus) as rig:
            assert type(asyncio.get_running_loop()) is uvloop.Loop
            assert (await rig.post(chat())).status == 200
            await rig.admin("POST", "/admin/policy", {"policy": "wfq"})
            await asyncio.to_thread(server.stop)
            await eventually(lambda: not bus.health.connected)
            answers = await asyncio.gather(*(rig.post(chat(f"number {number}")) for number in range(20)))
            status = (await rig.admin("GET", "/admin/status")).json
            ready = await rig.get("/ready")
            assert [answer.status for answer in answers] == [200] * 20
            assert ready.status == 200
            assert not status["bus"]["connected"]
            assert status["counts"]["conserved"]
            server = EmbeddedServer(folder, durable=False)
            await asyncio.to_thread(server.start)
            await eventually(lambda: bus.health.connected, timeout_s=10)
            # A slow start adds a line of its own: the first look may come before the first connection.
            await eventually(lambda: [event["after"] for event in rig.events("bus")][-2:] == ["away", "connected"])
            assert (await rig.post(chat())).status == 200
            async with asyncio.timeout(5):
                while len(await completions(bus)) < 21:  # noqa: ASYNC110 - the server is another process
                    await asyncio.sleep(0.01)
            notices = [message for message in await bus.latest(OVERRIDES, 5) if isinstance(message, OverrideNotice)]
            assert notices[-1].policy == "wfq", "a server without a memory is told again"
            await rig.admin("DELETE", "/admin/policy")
            decision = MetaDecision(sent_s=rig.gateway.clock.now_s(), decision_id="d", policy="sjf", previous="fcfs")
            bus.post(decision)
            await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
    finally:
        await asyncio.to_thread(server.stop)


@pytest.mark.timeout(20)
async def test_a_redis_that_was_never_there(tmp_path: Path):
    bus: Any = RedisBus(f"unix://{tmp_path}/nobody.sock")
    async with running(tmp_path, bus=bus) as rig:
        assert (await rig.post(chat())).status == 200
        assert not (await rig.admin("GET", "/admin/status")).json["bus"]["connected"]


async def test_a_server_that_was_away_for_less_than_a_cycle_is_told_again(tmp_path: Path):
    async with running(tmp_path) as rig:
        await rig.admin("POST", "/admin/policy", {"policy": "wfq"})
        known = len(await rig.bus.latest(OVERRIDES, 50))
        await eventually(lambda: rig.gateway._bus_up)
        rig.bus._health = replace(rig.bus.health, losses=1)
        await eventually(lambda: [event["after"] for event in rig.events("bus")] == ["away", "connected"])
        notices = await rig.bus.latest(OVERRIDES, 50)
    assert len(notices) == known + 1
    assert notices[-1].policy == "wfq"
