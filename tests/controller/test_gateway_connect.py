"""Engines are connected at the start of a gateway all at once; where one of them cannot be, nothing of the others is left."""

import asyncio
import socket
from pathlib import Path

import pytest
from gateway_kit import Sim, eventually, make_config, start_sim
from hmas_lab.memory_bus import MemoryBus
from typing_kit import known

from hmas.controller.config.schema import EngineConfig
from hmas.controller.gateway.process import serve
from hmas.controller.runtime.clock import SystemClock
from hmas.engines.base import EngineSnapshot
from hmas.engines.errors import EngineError
from hmas.engines.sim.adapter import SimEngine


def connections(sim: Sim) -> int:
    return len(known(sim.runner.server).connections)


async def test_an_engine_that_is_connected_is_closed_where_another_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sims = [await start_sim("sim-1"), await start_sim("sim-2")]
    snapshot = SimEngine.snapshot

    async def failing(engine: SimEngine, now_s: float) -> EngineSnapshot:
        found = await snapshot(engine, now_s)
        if engine.name == "sim-2":
            await eventually(lambda: connections(sims[0]) == connections(sims[1]) == 1)
            raise RuntimeError("an adapter with a mistake")
        return found

    monkeypatch.setattr(SimEngine, "snapshot", failing)
    try:
        with pytest.raises(RuntimeError, match="an adapter with a mistake"):
            await serve(make_config(sims, tmp_path), bus=MemoryBus(), clock=SystemClock())
        # An idle connection is dropped after 4 s in any case.
        await eventually(lambda: [connections(sim) for sim in sims] == [0, 0], 2.0)
    finally:
        for sim in sims:
            await sim.runner.cleanup()


async def test_no_engine_is_still_being_connected_once_the_start_has_failed(tmp_path: Path):
    # Connections are accepted by the system, and never answered.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        engines = [EngineConfig(name="silent", url=url), EngineConfig(name="wrong", url=url, kind="magic")]
        before = asyncio.all_tasks()
        with pytest.raises(EngineError, match="engine wrong: kind is 'magic'"):
            await serve(make_config([], tmp_path, engines_config=engines), bus=MemoryBus(), clock=SystemClock())
        assert asyncio.all_tasks() == before
