"""Runs one agent process: it reads streams, calls the agent, posts the answers and stops cleanly. It contains no agent logic.

An agent is a plain object (see `Agent`). The shell reads its streams in a consumer group named after the agent. It collects messages
while the agent works on a batch, hands over the next batch, posts the answers, then acknowledges the messages.
Delivery is at least once: after a crash between posting and acknowledging, the same messages arrive again, so an agent recognises by the
message id what it has already counted. The shell reads the streams in `follows` without a group, so every instance of the agent sees all of
their messages. It begins before the agent recovers, so that a message may be in both what is recovered and what is read; none is missing.
"""

import asyncio
import importlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from hmas.agents.runtime.inbox import Inbox
from hmas.agents.runtime.staleness import StaleWatch
from hmas.agents.runtime.work import Deferred, Lane
from hmas.controller.bus.base import Bus, Delivery
from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import TELEMETRY, Event, Message, ModelReport, Severity
from hmas.controller.runtime.clock import Clock
from hmas.controller.runtime.notify import Notifier

log = logging.getLogger(__name__)

BATCH = 100
"""Most messages in one batch."""
BLOCK_MS = 500
"""How long one read waits; it bounds the time between two watchdog beats to the service manager."""
GATHER_S = 0.1
"""How long the reader of telemetry rests after each batch. No request waits for it, and ten messages take little more time than one."""
BEAT_S = 1.0
"""Shortest time between two watchdog beats."""
WORK_S = 60.0
"""How long one batch may be worked on in the lane while the shell keeps reporting that it is alive."""
SIDE_NICE = 5
"""Niceness of an agent's side work (see `WorksBeside`), added to the process's niceness."""
STOP_WAIT_S = 5.0
"""How long a stop waits for the current batch; a batch that does not finish is delivered again after the next start."""
CONNECT_WAIT_S = 10.0
"""How long a starting agent waits for the bus before it continues without recovered state."""


class Agent(Protocol):
    """The interface between an agent and the shell. Its methods do no I/O and read no clock; they return slow work as `Deferred`.

    Attributes:
        name: Name on the bus: the consumer group and the `source` of the agent's events.
        streams: Streams that the agent reads; each message goes to one instance of the group, so instances share the work.
        max_age_s: Largest useful age (now - `sent_s`) by message type. The shell acknowledges and counts older messages, but drops them.
    """

    name: str
    streams: tuple[str, ...]
    max_age_s: Mapping[type[Message], float]

    async def recover(self, bus: Bus, now_s: float) -> None:
        """Rebuilds the agent's state once at start, from `bus.latest(...)` of its inputs and its own outputs."""

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message] | Deferred[Any]:
        """Takes a batch in stream order and returns what to post, directly or as deferred work. It ignores message types it does not use.

        The next batch arrives after the answers to this one are posted; ticks continue meanwhile. If the call or its deferred work raises,
        the shell hands over the same messages one at a time, and logs and skips each message that raises.
        """


@runtime_checkable
class Ticks(Protocol):
    """An agent that also works by the clock.

    Attributes:
        tick_s: Seconds between two calls of `on_tick`, more than 0.
    """

    tick_s: float

    def on_tick(self, now_s: float) -> list[Message]:
        """Runs every `tick_s`, with or without messages, and also while the bus is unreachable; returns what to post."""


@runtime_checkable
class Follows(Protocol):
    """An agent that learns from streams whose messages all of its instances must see.

    Attributes:
        follows: Names of these streams. The shell reads them without a group from the start on; `recover` reads the earlier messages.
    """

    follows: tuple[str, ...]


@runtime_checkable
class WorksBeside(Protocol):
    """An agent with side work that is not urgent, such as loading another model or running one in shadow mode."""

    def beside(self, now_s: float) -> Deferred[Any] | None:
        """Returns the next piece of side work, or None. The shell asks after batches and ticks, while no other piece runs."""


@dataclass(slots=True)
class ShellCounts:
    """Counts of what the shell has processed since its start."""

    handled: int = 0
    stale: int = 0
    failed: int = 0
    ticks: int = 0


class AgentShell:
    """Runs one agent on a bus until it is asked to stop.

    Attributes:
        instance: Consumer name within the group. It is the same after a restart, so the bus delivers unfinished entries again.
        ending: Whether it has been asked to stop.
        inbox: Messages that were read and not handled yet.
    """

    def __init__(self, *, agent: Agent, bus: Bus, clock: Clock, instance: str = "0", notify: Notifier | None = None) -> None:
        self.agent = agent
        self.bus = bus
        self.clock = clock
        self.instance = instance
        self.notify = notify
        self.counts = ShellCounts()
        self.ending = False
        self.inbox = Inbox()
        self._told_s = -1.0
        self._side: asyncio.Task[None] | None = None
        self._ages = StaleWatch()
        self._lane = Lane(f"{agent.name}-work")
        self._side_lane = Lane(f"{agent.name}-side", SIDE_NICE)
        self._follows = agent.follows if isinstance(agent, Follows) else ()

    async def run(self, stop: asyncio.Event) -> None:
        """Recovers the agent's state, then reads, handles, posts and ticks until `stop` is set. The bus stays open."""
        await self.bus.start()
        self._post([self._event("agent_started", f"instance {self.instance}, pid {os.getpid()}")])
        await self._await_bus(stop)
        # What comes on these streams while the agent recovers waits in the inbox, as far as it has room, and then in the stream.
        following = [asyncio.create_task(self._read(self._followed(), self._follows))] if self._follows else []
        try:
            await self._recover()
            await self._serve(stop, following)
        finally:
            await _end(following)
            self._lane.close()
            self._side_lane.close()
            if self.notify is not None:
                self.notify.stopping()
        self._post([self._event("agent_stopped", f"handled {self.counts.handled}, stale {self.counts.stale}, failed {self.counts.failed}")])

    async def _serve(self, stop: asyncio.Event, following: list[asyncio.Task[None]]) -> None:
        stopping, ticking = asyncio.create_task(stop.wait()), asyncio.create_task(self._tick())
        working, reading = asyncio.create_task(self._work()), [asyncio.create_task(self._read(self._shared(), self.agent.streams))]
        reading += following
        try:
            await asyncio.wait({stopping, working, *reading}, return_when=asyncio.FIRST_COMPLETED)
            # The current batch may finish, but only within STOP_WAIT_S.
            self.ending = True
            self.inbox.wake()
            await asyncio.wait({working}, timeout=STOP_WAIT_S)
        finally:
            tasks: list[asyncio.Task[Any]] = [stopping, ticking, working, *reading, *([] if self._side is None else [self._side])]
            self.ending = True
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

    async def _read(self, batches: AsyncIterator[list[Delivery]], streams: Collection[str]) -> None:
        rest_s = GATHER_S if TELEMETRY in streams else 0.0
        try:
            async for batch in batches:
                if self.ending:
                    return
                await self.inbox.put(batch)
                if rest_s and 0 < len(batch) < BATCH:
                    await asyncio.sleep(rest_s)
        finally:
            # A reader that is cancelled between two batches still has to return its connection.
            aclose = getattr(batches, "aclose", None)
            if aclose is not None:
                await aclose()

    def _shared(self) -> AsyncIterator[list[Delivery]]:
        """Reads the streams whose messages the agent's instances share; messages are acknowledged after they are handled."""
        return self.bus.read(self.agent.streams, group=self.agent.name, consumer=self.instance, count=BATCH, block_ms=BLOCK_MS)

    def _followed(self) -> AsyncIterator[list[Delivery]]:
        """Reads the streams that every instance sees in full."""
        return self.bus.follow(self._follows, count=BATCH, block_ms=BLOCK_MS)

    async def _work(self) -> None:
        while not self.ending:
            await self._take(await self.inbox.gathered(BATCH, BLOCK_MS / 1000.0))
            self._look_beside()
            self._tell_alive()

    def _tell_alive(self) -> None:
        """Reports readiness after the first finished cycle, then sends at most one watchdog beat per second."""
        now_s = self.clock.now_s()
        if self.notify is None or now_s - self._told_s < BEAT_S:
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
        # A bus that hangs holds this up for longer than a supervisor waits for a beat.
        own = [delivery for delivery in deliveries if delivery.stream not in self._follows]
        await self._alive_during(self.bus.ack(own, group=self.agent.name))
        self.inbox.done(deliveries)

    def _fresh(self, deliveries: list[Delivery], now_s: float) -> list[Delivery]:
        """Returns the deliveries within their age limit; warns if all are too old, or come from a clock that is ahead."""
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
        except Exception:  # noqa: BLE001 - the second pass finds and logs the message at fault; the others are handled
            answers = await self._handle_singly(deliveries, now_s)
        self.counts.handled += len(deliveries)
        return answers

    async def _ask(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        said = self.agent.handle(messages, now_s)
        if not isinstance(said, Deferred):
            return said
        answers: list[Message] = await self._alive_during(self._done(said, self._lane))
        return answers

    async def _alive_during(self, work: Awaitable[Any]) -> Any:
        beating = asyncio.create_task(self._beat())
        try:
            return await work
        finally:
            beating.cancel()

    async def _done(self, work: Deferred[Any], lane: Lane) -> list[Message]:
        result = await lane.run(work.compute)
        return work.finish(result, self.clock.now_s())

    async def _beat(self) -> None:
        """Reports for a bounded time that the process is alive while a slow model works or a bus hangs: it is not hung itself."""
        for _ in range(int(WORK_S / BEAT_S)):
            await asyncio.sleep(BEAT_S)
            if self._told_s >= 0:
                self._tell_alive()

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
        agent = self.agent
        if not isinstance(agent, Ticks):
            return
        next_s = self.clock.now_s() + agent.tick_s
        while True:
            await asyncio.sleep(max(0.0, next_s - self.clock.now_s()))
            now_s = self.clock.now_s()
            # Ticks missed while the machine was busy are dropped.
            next_s = max(next_s + agent.tick_s, now_s)
            self.counts.ticks += 1
            try:
                self._post(agent.on_tick(now_s))
            except Exception:
                self.counts.failed += 1
                log.exception("%s: tick failed", self.agent.name)
            self._look_beside()

    def _look_beside(self) -> None:
        """Starts the next piece of side work, if there is one and none is running."""
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
            # Only the shell knows the name of its instance.
            signed = msgspec.structs.replace(message, instance=self.instance) if isinstance(message, ModelReport) else message
            self.bus.post(signed)

    def _event(self, kind: str, after: str, warning: str = "") -> Event:
        severity: Severity = "warning" if warning else "info"
        name = self.agent.name
        return Event(sent_s=self.clock.now_s(), source=name, kind=kind, subject=name, after=after, reason=warning, severity=severity)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancels tasks until all have ended: the bus client can swallow a cancellation that arrives while it connects."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)


def make_agent(name: str, config: Config) -> Agent:
    """Imports and builds the agent with this name: `make_agent` of its module, which only that agent's own process imports.

    Raises:
        ConfigError: The name is unknown.
    """
    if name not in AGENT_NAMES:
        raise ConfigError(f"agent {name!r} is unknown; allowed: {', '.join(AGENT_NAMES)}")
    agent: Agent = importlib.import_module(f"hmas.agents.{name}.agent").make_agent(config)
    return agent


def instance_name(env: Mapping[str, str]) -> str:
    """Returns the stable consumer name of this process: `HMAS_INSTANCE`, else "0" (one instance of each agent per bus)."""
    return env.get("HMAS_INSTANCE", "") or "0"


async def run_agent(
    name: str,
    config: Config,
    bus: Bus,
    clock: Clock,
    *,
    stop: asyncio.Event | None = None,
    instance: str = "0",
    notify: Notifier | None = None,
) -> None:
    """Runs the named agent until `stop` is set or the task is cancelled. Starts the bus and leaves it open for its owner to close.

    Raises:
        ConfigError: The name is unknown.
    """
    shell = AgentShell(agent=make_agent(name, config), bus=bus, clock=clock, instance=instance, notify=notify)
    await shell.run(stop or asyncio.Event())
