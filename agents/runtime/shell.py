"""Runs one agent process: reads its streams, calls the agent, posts the answers, stops cleanly. It contains no agent logic.

An agent is a plain object (see `Agent`). The shell reads its streams as the consumer group named like the agent, gathers what comes while
a batch is being worked on, hands it over, posts what the agent answers, acknowledges afterwards, and calls its tick. Delivery is at least
once: a crash between posting and acknowledging brings the same messages again, so an agent recognises what it has already counted by the
message's own id. Streams that an agent only learns from it follows by itself, so that every instance of it learns all there is.
"""

import asyncio
import importlib
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import msgspec

from hmas.agents.runtime.inbox import Inbox
from hmas.agents.runtime.staleness import StaleWatch
from hmas.agents.runtime.work import Deferred, Lane
from hmas.controller.bus.base import Bus, Delivery
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import Event, Message, ModelReport, Severity
from hmas.controller.runtime.clock import Clock

log = logging.getLogger(__name__)

BATCH = 100
"""Messages handed over at once, at most."""
BLOCK_MS = 500
"""How long one read waits: the longest time between two signs of life to the service manager."""
SIDE_NICE = 5
"""Niceness of what runs beside an agent's own work, on top of the process's."""
STOP_WAIT_S = 5.0
"""How long a stop waits for the batch under way; after it the batch comes back to the next start."""
CONNECT_WAIT_S = 10.0
"""How long a starting agent waits for the bus before it goes on with empty memory."""

AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "perception": "hmas.agents.perception.agent",
        "prediction": "hmas.agents.prediction.agent",
        "qos": "hmas.agents.qos.agent",
        "meta": "hmas.agents.meta.agent",
        "statera": "hmas.agents.statera.agent",
    }
)
"""Each agent's module. It offers `make_agent(config: Config) -> Agent`, and is imported in that agent's own process only."""


class Agent(Protocol):
    """What the shell asks of an agent. Its methods do no I/O and read no clock; what takes long they hand back as `Deferred`.

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

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message] | Deferred[Any]:
        """Takes a batch in stream order and returns what to post, at once or as work. Types it has no use for are ignored.

        The next batch comes when this one is posted; ticks go on meanwhile. When it, or its work, raises, the shell hands the same
        messages over again one at a time, logs and skips the one that raises alone.
        """
        ...

    def on_tick(self, now_s: float) -> list[Message]:
        """Called every `tick_s`, whether messages came or not, also while the bus is away; returns what to post."""
        ...


@runtime_checkable
class Follows(Protocol):
    """An agent that learns from streams whose messages all of its instances must see.

    Attributes:
        follows: These streams. They are read without a group from the moment of the start on; `recover` has what was before.
    """

    follows: tuple[str, ...]


@runtime_checkable
class WorksBeside(Protocol):
    """An agent with work that may wait: loading another model, trying one in the shadow."""

    def beside(self, now_s: float) -> Deferred[Any] | None:
        """The next piece of it, None where there is none. Asked after batches and ticks, when no other piece is under way."""
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
    _told_s: float = field(default=-1.0, init=False)
    _ending: bool = field(default=False, init=False)
    _side: asyncio.Task[None] | None = field(default=None, init=False)
    _inbox: Inbox = field(default_factory=Inbox, init=False)
    _ages: StaleWatch = field(default_factory=StaleWatch, init=False)
    _lane: Lane = field(init=False)
    _side_lane: Lane = field(init=False)
    _follows: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Sets up what is the shell's own."""
        self._lane = Lane(f"{self.agent.name}-work")
        self._side_lane = Lane(f"{self.agent.name}-side", SIDE_NICE)
        self._follows = self.agent.follows if isinstance(self.agent, Follows) else ()

    async def run(self, stop: asyncio.Event) -> None:
        """Recovers the agent's memory, then reads, handles, posts and ticks until `stop` is set. The bus stays open."""
        await self.bus.start()
        self._post([self._event("agent_started", f"instance {self.instance}, pid {os.getpid()}")])
        await self._await_bus(stop)
        await self._recover()
        try:
            await self._serve(stop)
        finally:
            self._lane.close()
            self._side_lane.close()
            if self.notify is not None:
                self.notify.stopping()
        self._post([self._event("agent_stopped", f"handled {self.counts.handled}, stale {self.counts.stale}, failed {self.counts.failed}")])

    async def _serve(self, stop: asyncio.Event) -> None:
        stopping, ticking = asyncio.create_task(stop.wait()), asyncio.create_task(self._tick())
        working, reading = asyncio.create_task(self._work()), [asyncio.create_task(self._read(self._shared()))]
        if self._follows:
            reading.append(asyncio.create_task(self._read(self._followed())))
        try:
            await asyncio.wait({stopping, working, *reading}, return_when=asyncio.FIRST_COMPLETED)
            # The batch under way is not cut in two, but neither is it waited for for ever.
            self._ending = True
            self._inbox.wake()
            await asyncio.wait({working}, timeout=STOP_WAIT_S)
        finally:
            tasks: list[asyncio.Task[Any]] = [stopping, ticking, working, *reading, *([] if self._side is None else [self._side])]
            self._ending = True
            await _end(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

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

    async def _read(self, batches: AsyncIterator[list[Delivery]]) -> None:
        try:
            async for batch in batches:
                if self._ending:
                    return
                await self._inbox.put(batch)
        finally:
            # A reader that is cancelled between two batches still has its connection to give back.
            aclose = getattr(batches, "aclose", None)
            if aclose is not None:
                await aclose()

    def _shared(self) -> AsyncIterator[list[Delivery]]:
        """What the agent's instances divide among themselves; acknowledged once it is worked off."""
        return self.bus.read(self.agent.streams, group=self.agent.name, consumer=self.instance, count=BATCH, block_ms=BLOCK_MS)

    def _followed(self) -> AsyncIterator[list[Delivery]]:
        """What every instance sees."""
        return self.bus.follow(self._follows, count=BATCH, block_ms=BLOCK_MS)

    async def _work(self) -> None:
        while not self._ending:
            await self._take(await self._inbox.gathered(BATCH, BLOCK_MS / 1000.0))
            self._look_beside()
            self._tell_alive()

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
        fresh = self._fresh(deliveries, now_s)
        if fresh:
            self._post(await self._handle(fresh, now_s))
        await self.bus.ack([delivery for delivery in deliveries if delivery.stream not in self._follows], group=self.agent.name)
        self._inbox.done(deliveries)

    def _fresh(self, deliveries: list[Delivery], now_s: float) -> list[Delivery]:
        """Those that are not too old to be handled; says so where everything is, or comes from a time ahead."""
        fresh: list[Delivery] = []
        ages_s: list[float] = []
        for delivery in deliveries:
            limit_s = self.agent.max_age_s.get(type(delivery.message))
            if limit_s is not None:
                ages_s.append(now_s - float(getattr(delivery.message, "sent_s", now_s)))
            if limit_s is None or ages_s[-1] <= limit_s:
                fresh.append(delivery)
        stale = len(deliveries) - len(fresh)
        self.counts.stale += stale
        if warning := self._ages.observe(ages_s, len(ages_s) - stale, now_s):
            log.warning("%s: %s", self.agent.name, warning)
            self._post([self._event("clocks_differ", "", warning)])
        return fresh

    async def _handle(self, deliveries: list[Delivery], now_s: float) -> list[Message]:
        try:
            answers = await self._ask([delivery.message for delivery in deliveries], now_s)
        except Exception:  # noqa: BLE001 - the second pass finds the message at fault and logs it; the others go on
            answers = await self._handle_singly(deliveries, now_s)
        self.counts.handled += len(deliveries)
        return answers

    async def _ask(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        said = self.agent.handle(messages, now_s)
        return await self._done(said, self._lane) if isinstance(said, Deferred) else said

    async def _done(self, work: Deferred[Any], lane: Lane) -> list[Message]:
        result = await lane.run(work.compute)
        return work.finish(result, self.clock.now_s())

    async def _handle_singly(self, deliveries: list[Delivery], now_s: float) -> list[Message]:
        answers: list[Message] = []
        for delivery in deliveries:
            try:
                answers += await self._ask([delivery.message], now_s)
            except Exception:
                self.counts.failed += 1
                log.exception(
                    "%s: skipped %s %s of %s", self.agent.name, type(delivery.message).__name__, delivery.entry_id, delivery.stream
                )
        return answers

    async def _tick(self) -> None:
        if self.agent.tick_s <= 0:
            return
        next_s = self.clock.now_s() + self.agent.tick_s
        while True:
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
            self._look_beside()

    def _look_beside(self) -> None:
        """Starts the next piece of work that may wait, where there is one and none is under way."""
        if not isinstance(self.agent, WorksBeside) or (self._side is not None and not self._side.done()):
            return
        try:
            work = self.agent.beside(self.clock.now_s())
        except Exception:
            self.counts.failed += 1
            log.exception("%s: could not say what to do beside its work", self.agent.name)
            return
        if work is not None:
            self._side = asyncio.create_task(self._do_beside(work))

    async def _do_beside(self, work: Deferred[Any]) -> None:
        try:
            self._post(await self._done(work, self._side_lane))
        except Exception:
            self.counts.failed += 1
            log.exception("%s: work beside its own failed", self.agent.name)

    def _post(self, messages: Sequence[Message]) -> None:
        for message in messages:
            # Which of its instances it is, only the shell knows.
            signed = msgspec.structs.replace(message, instance=self.instance) if isinstance(message, ModelReport) else message
            self.bus.post(signed)
        self.counts.posted += len(messages)

    def _event(self, kind: str, after: str, warning: str = "") -> Event:
        severity: Severity = "warning" if warning else "info"
        name = self.agent.name
        return Event(sent_s=self.clock.now_s(), source=name, kind=kind, subject=name, after=after, reason=warning, severity=severity)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancels tasks until all have ended: the bus's client library swallows a cancellation that meets it while it connects."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)


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
