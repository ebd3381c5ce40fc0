"""A gateway on a real Redis server that goes away and comes back."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from gateway_kit import chat, eventually, gateway_config, running
from hmas_lab.memory_bus import MemoryBus
from test_gateway_control import SLOW_TICKS, decision, features, leave, now_s, waiting_request
from typing_kit import known, of_type

from hmas.controller.bus import link
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.messages import OVERRIDES, TELEMETRY, Completion, ControlAction, MetaDecision, OverrideNotice, RequestCost
from hmas.controller.gateway import app

PATIENCE_S = 30.0
"""How long anything may take that happens in another process or after a pause between attempts: the machine may stand still meanwhile."""
LASTING = AgentsConfig(stale_after_s=120.0)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    """As `eventually`, for what has to be asked of the server."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.01)


async def completions(bus: RedisBus) -> list[Completion]:
    return [message for message in await bus.latest(TELEMETRY, 20_000) if isinstance(message, Completion)]


async def told_policy(bus: RedisBus) -> str:
    """The policy that operators hold, by the newest notice on the server; empty where there is none."""
    notices = [message for message in await bus.latest(OVERRIDES, 1) if isinstance(message, OverrideNotice)]
    return notices[-1].policy if notices else ""


async def test_redis_goes_away_and_comes_back_under_load(tmp_path: Path):
    folder = tmp_path / "bus"
    server = EmbeddedServer(folder, durable=False)
    bus: Any = RedisBus(await asyncio.to_thread(server.start))
    try:
        async with running(tmp_path, bus=bus, agents=LASTING, gateway=gateway_config(engine_connect_timeout_s=PATIENCE_S)) as rig:
            assert type(asyncio.get_running_loop()) is uvloop.Loop
            # A bus that was never there does not go away: the gateway has to have seen it first.
            await eventually(lambda: rig.gateway.bus_watch.up, PATIENCE_S)
            assert (await rig.post(chat())).status == 200
            await rig.admin("POST", "/admin/policy", {"policy": "wfq"})
            await until(lambda: told_policy(bus))
            await until(lambda: completions(bus))
            await asyncio.to_thread(server.stop)
            await eventually(lambda: not rig.gateway.bus_watch.up, PATIENCE_S)
            answers = await asyncio.gather(*(rig.post(chat(f"number {number}")) for number in range(20)))
            status = (await rig.admin("GET", "/admin/status")).json
            ready = await rig.get("/ready")
            assert [answer.status for answer in answers] == [200] * 20
            assert ready.status == 200
            assert not status["bus"]["connected"]
            assert status["counts"]["conserved"]
            server = EmbeddedServer(folder, durable=False)
            await asyncio.to_thread(server.start)
            # A slow start adds a line of its own: the first look may come before the first connection.
            await eventually(lambda: [event["after"] for event in rig.events("bus")][-2:] == ["away", "connected"], PATIENCE_S)
            assert (await rig.post(chat())).status == 200
            # A server without a memory has everything since it was lost, and is told again what operators hold.
            await until(lambda: told_policy(bus))
            assert await told_policy(bus) == "wfq"

            async def all_told() -> bool:
                return len({completion.request_id for completion in await completions(bus)}) == 21

            await until(all_told)
            await rig.admin("DELETE", "/admin/policy")
            decision = MetaDecision(sent_s=rig.gateway.clock.now_s(), decision_id="d", policy="sjf", previous="fcfs")
            bus.post(decision)
            await eventually(lambda: rig.gateway.scheduler.policy == "sjf", PATIENCE_S)
    finally:
        await asyncio.to_thread(server.stop)


@pytest.mark.timeout(20)
async def test_a_redis_that_was_never_there(tmp_path: Path):
    bus: Any = RedisBus(f"unix://{tmp_path}/nobody.sock")
    async with running(tmp_path, bus=bus) as rig:
        assert (await rig.post(chat())).status == 200
        assert not (await rig.admin("GET", "/admin/status")).json["bus"]["connected"]


async def test_the_gateway_starts_on_a_redis_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "RESUME_MOST_S", 0.1)
    server = EmbeddedServer(tmp_path / "bus", durable=False)
    bus: Any = RedisBus(await asyncio.to_thread(server.start))
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        async with running(tmp_path, bus=bus, agents=LASTING) as rig:
            took_s = time.monotonic() - began_s
            assert (await rig.post(chat())).status == 200
            os.kill(server.pid, signal.SIGCONT)
    finally:
        os.kill(server.pid, signal.SIGCONT)
        await asyncio.to_thread(server.stop)
    assert took_s < link.ANSWER_TIMEOUT_S


async def test_a_server_that_was_away_for_less_than_a_cycle_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with running(tmp_path) as rig:
        await rig.admin("POST", "/admin/policy", {"policy": "wfq"})
        known = len(await rig.bus.latest(OVERRIDES, 50))
        await eventually(lambda: rig.gateway.bus_watch.up)
        health = replace(rig.bus.health, losses=1)
        monkeypatch.setattr(MemoryBus, "health", property(lambda _: health))
        await eventually(lambda: [event["after"] for event in rig.events("bus")] == ["away", "connected"])
        notices = await rig.bus.latest(OVERRIDES, 50)
    assert len(notices) == known + 1
    assert of_type(OverrideNotice, notices[-1]).policy == "wfq"


async def test_answers_that_are_read_again_much_later_change_nothing_and_are_no_sign_of_life(tmp_path: Path):
    async with running(tmp_path, scheduler=SLOW_TICKS) as rig:
        waits, tasks = await waiting_request(rig)
        hears, before = rig.gateway.subscriber.on_message, known(rig.gateway.manager.active[waits].entry).estimates
        times, old_s = {"sim-1": 20.0}, now_s(rig) - 11.0
        cost = RequestCost(request_id=waits, sent_s=old_s, ttft_ms=times, tpot_ms=times, output_tokens=9.0)
        action = ControlAction(sent_s=old_s, instance="sim-1", n_run=3)
        for message in (features(rig, waits, sent_s=old_s), cost, decision(rig, sent_s=old_s), action):
            hears(message)
        assert known(rig.gateway.manager.active[waits].entry).estimates == before
        assert rig.gateway.liveness.received_s == {}
        hears(features(rig, waits, sent_s=old_s + 2.0))
        assert known(rig.gateway.manager.active[waits].entry).estimates.source == "perception"
        assert list(rig.gateway.liveness.received_s) == ["perception"]
        await leave(tasks)
