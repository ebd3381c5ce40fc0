"""What tests of the shell share: agents that run in it, and are stopped in the end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hmas_lab.memory_bus import MemoryBus

from hmas.agents.runtime.shell import AgentShell
from hmas.controller.core.messages import COSTS
from hmas.controller.runtime.clock import Clock


@dataclass
class Running:
    shell: AgentShell
    bus: MemoryBus
    stop: asyncio.Event
    task: asyncio.Task

    async def answers(self, count: int, stream: str = COSTS) -> list[Any]:
        async with asyncio.timeout(5):
            while len(found := await self.bus.latest(stream, 1000)) < count:  # noqa: ASYNC110 - the bus is polled: followers are not what is tested
                await asyncio.sleep(0)
        return found

    async def end(self) -> None:
        self.stop.set()
        async with asyncio.timeout(5):
            await self.task


@asynccontextmanager
async def shells(clock: Callable[[], Clock]) -> AsyncIterator[Callable[..., Running]]:
    """Starts agents, each with a clock of its own, and ends them all."""
    started: list[Running] = []

    def start(agent, bus=None, *, notify=None, instance="0") -> Running:
        bus = bus or MemoryBus()
        stop = asyncio.Event()
        shell = AgentShell(agent=agent, bus=bus, clock=clock(), notify=notify, instance=instance)
        started.append(Running(shell, bus, stop, asyncio.create_task(shell.run(stop))))
        return started[-1]

    yield start
    for one in started:
        await one.end()
