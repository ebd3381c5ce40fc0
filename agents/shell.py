"""The process shell of an agent: bus in, bus out, clean stop, and nothing of its trade.

An agent is a plain object (see `Agent`). The shell reads its streams as the consumer group named like the agent, hands it batches, posts
what it answers, acknowledges afterwards, and calls its tick. Delivery is at least once: a crash between posting and acknowledging, or a
lost connection, brings the same messages again, so an agent recognises what it has already counted by the message's own id.
"""

import asyncio
import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from controller.bus.base import Bus, Delivery
from controller.config.schema import Config
from controller.core.errors import ConfigError
from controller.core.messages import Event, Message
from controller.runtime.clock import Clock

log = logging.getLogger(__name__)

BATCH = 100
"""Messages handed over at once, at most."""
BLOCK_MS = 500
"""How long one read waits: the longest time between two signs of life to the service manager."""
CONNECT_WAIT_S = 10.0
"""How long a starting agent waits for the bus before it goes on with empty memory."""

AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "perception": "agents.perception.agent",
        "prediction": "agents.prediction.agent",
        "qos": "agents.qos.agent",
        "meta": "agents.meta.agent",
        "statera": "agents.statera.agent",
    }
)
"""Each agent's module. It offers `make_agent(config: Config) -> Agent`, and is imported in that agent's own process only."""


class Agent(Protocol):
    """What the shell asks of an agent. `handle` and `on_tick` do no I/O and read no clock.

    Attributes:
        name: Its name on the bus: the consumer group and the `source` of its events.
        streams: Streams it reads, every message once per group (a second instance of the agent shares the work).
        tick_s: Seconds between two calls of `on_tick`, 0 for never.
        max_age_s: By message type, the age (now - `sent_s`) beyond which a message is useless: acknowledged and counted, not handed over.
    """

    name: str
    streams: tuple[str, ...]
    tick_s: float
    max_age_s: Mapping[type[Message], float]

    async def recover(self, bus: Bus, now_s: float) -> None:
        """Rebuilds memory once at start, from `bus.latest(...)` of its inputs and of its own outputs."""
        ...

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Takes a batch in stream order and returns what to post. Types it has no use for are ignored.

        When it raises, the shell hands the same messages over again one at a time, logs and skips the one that raises alone.
        """
        ...

    def on_tick(self, now_s: float) -> list[Message]:
        """Called every `tick_s`, whether messages came or not, also while the bus is away; returns what to post."""
        ...


class Notify(Protocol):
    """The service manager's ear (systemd's sd_notify)."""

    def ready(self) -> None:
        """The agent serves."""
        ...

    def watchdog(self) -> None:
        """A cycle has been finished."""
        ...

    def stopping(self) -> None:
        """The agent is on its way out."""
        ...


@dataclass(slots=True)
class ShellCounts:
    """What passed through the shell since it started."""

    handled: int = 0
    posted: int = 0
    stale: int = 0
    failed: int = 0
    ticks: int = 0


@dataclass(slots=True)
class AgentShell:
    """Runs one agent on a bus until told to stop.

    Attributes:
        instance: Consumer name within the group. The same after a restart, so that unfinished entries come back to it.
    """

    agent: Agent
    bus: Bus
    clock: Clock
    instance: str = "0"
    notify: Notify | None = None
    counts: ShellCounts = field(default_factory=ShellCounts)
    _told_s: float = -1.0

    async def run(self, stop: asyncio.Event) -> None:
        """Recovers the agent's memory, then reads, handles, posts and ticks until `stop` is set. The bus stays open."""
        await self.bus.start()
        self._post([self._event("agent_started", f"instance {self.instance}, pid {os.getpid()}")])
        await self._await_bus(stop)
        await self._recover()
        ticking = asyncio.create_task(self._tick_until(stop))
        try:
            await self._read_until(stop)
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            if self.notify is not None:
                self.notify.stopping()
        self._post([self._event("agent_stopped", f"handled {self.counts.handled}, stale {self.counts.stale}, failed {self.counts.failed}")])

    async def _await_bus(self, stop: asyncio.Event) -> None:
        deadline_s = self.clock.now_s() + CONNECT_WAIT_S
        while not self.bus.health.connected and not stop.is_set():
            if self.clock.now_s() >= deadline_s:
                log.warning("%s: the bus is away (%s); starting without memory", self.agent.name, self.bus.health.detail)
                return
            await asyncio.sleep(0.05)

    async def _recover(self) -> None:
        try:
            await self.agent.recover(self.bus, self.clock.now_s())
        except Exception:
            self.counts.failed += 1
            log.exception("%s: could not rebuild its memory; starting without", self.agent.name)

    async def _read_until(self, stop: asyncio.Event) -> None:
        batches = self.bus.read(self.agent.streams, group=self.agent.name, consumer=self.instance, count=BATCH, block_ms=BLOCK_MS)
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                # A batch is awaited beside the stop flag: a stop need not wait for a block to run out, and never cuts a batch in two.
                reading = asyncio.ensure_future(anext(batches))
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                    return
                await self._take(reading.result())
                self._tell_alive()
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            aclose = getattr(batches, "aclose", None)
            if aclose is not None:
                await aclose()

    def _tell_alive(self) -> None:
        """Readiness after the first finished cycle, then a watchdog beat, at most one a second."""
        now_s = self.clock.now_s()
        if self.notify is None or now_s - self._told_s < 1.0:
            return
        if self._told_s < 0:
            self.notify.ready()
        self.notify.watchdog()
        self._told_s = now_s

    async def _take(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            return
        now_s = self.clock.now_s()
        fresh = [delivery for delivery in deliveries if not self._is_stale(delivery.message, now_s)]
        self.counts.stale += len(deliveries) - len(fresh)
        if fresh:
            self._post(self._handle(fresh, now_s))
        await self.bus.ack(deliveries, group=self.agent.name)

    def _is_stale(self, message: Message, now_s: float) -> bool:
        limit_s = self.agent.max_age_s.get(type(message))
        return limit_s is not None and now_s - float(getattr(message, "sent_s", now_s)) > limit_s

    def _handle(self, deliveries: list[Delivery], now_s: float) -> list[Message]:
        messages = [delivery.message for delivery in deliveries]
        try:
            answers = self.agent.handle(messages, now_s)
        except Exception:  # noqa: BLE001 - the second pass finds the message at fault and logs it; the others go on
            answers = self._handle_singly(deliveries, now_s)
        self.counts.handled += len(messages)
        return answers

    def _handle_singly(self, deliveries: list[Delivery], now_s: float) -> list[Message]:
        answers: list[Message] = []
        for delivery in deliveries:
            try:
                answers += self.agent.handle([delivery.message], now_s)
            except Exception:
                self.counts.failed += 1
                log.exception(
                    "%s: skipped %s %s of %s", self.agent.name, type(delivery.message).__name__, delivery.entry_id, delivery.stream
                )
        return answers

    async def _tick_until(self, stop: asyncio.Event) -> None:
        if self.agent.tick_s <= 0:
            return
        next_s = self.clock.now_s() + self.agent.tick_s
        while not stop.is_set():
            await asyncio.sleep(max(0.0, next_s - self.clock.now_s()))
            now_s = self.clock.now_s()
            # Ticks missed while the machine was busy are not made up for.
            next_s = max(next_s + self.agent.tick_s, now_s)
            self.counts.ticks += 1
            try:
                self._post(self.agent.on_tick(now_s))
            except Exception:
                self.counts.failed += 1
                log.exception("%s: tick failed", self.agent.name)

    def _post(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.bus.post(message)
        self.counts.posted += len(messages)

    def _event(self, kind: str, after: str) -> Event:
        return Event(sent_s=self.clock.now_s(), source=self.agent.name, kind=kind, subject=self.agent.name, after=after)


def make_agent(name: str, config: Config) -> Agent:
    """Imports and builds the agent of that name.

    Raises:
        ConfigError: There is no such agent.
    """
    if name not in AGENTS:
        raise ConfigError(f"agent {name!r} is unknown; allowed: {', '.join(AGENTS)}")
    agent: Agent = importlib.import_module(AGENTS[name]).make_agent(config)
    return agent


def instance_name(env: Mapping[str, str]) -> str:
    """The stable consumer name of this process: `HMAS_INSTANCE`, else "0" (one instance of each agent per bus)."""
    return env.get("HMAS_INSTANCE", "") or "0"


async def run_agent(
    name: str,
    config: Config,
    bus: Bus,
    clock: Clock,
    *,
    stop: asyncio.Event | None = None,
    instance: str = "0",
    notify: Notify | None = None,
) -> None:
    """Runs the named agent until `stop` is set (or the task is cancelled). Starts the bus, and leaves it open for its owner to close.

    Raises:
        ConfigError: There is no such agent.
    """
    shell = AgentShell(agent=make_agent(name, config), bus=bus, clock=clock, instance=instance, notify=notify)
    await shell.run(stop or asyncio.Event())
