"""Engines that join and leave a running gateway, by a reloaded configuration."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from hmas.controller.config.derived import instance_spec
from hmas.controller.config.schema import EngineConfig
from hmas.controller.core.errors import HmasError
from hmas.controller.core.messages import Severity
from hmas.controller.gateway.control_loop.apply import Control
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.observability.observer import Observers
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.engines.base import Engine

LEAVES_AFTER_S = 2.0
"""How long nothing has been in flight on an instance before it is removed: what follows the end of a request still finds it."""
REMOVED_AT_ONCE = 8
"""Most instances that are removed in one tick: each takes one to two milliseconds where there are a thousand instances."""
Connect = Callable[[EngineConfig], Awaitable[Engine]]
REASONS = {"operator": "reload", "file": "engines_file has changed", "dns": "DNS has changed"}
"""Why engines join and leave, by the source of the change, which their events name."""
log = logging.getLogger(__name__)


class Membership:
    """Connects engines that join, and takes out those that leave once their requests have ended.

    An instance that joins gets requests as soon as its models and its health have been read once. One that leaves gets no more, and its
    requests go on to their end. Agents learn of both, and of the profile, from the gateway's snapshots.
    """

    def __init__(self, *, fleet: Fleet, scheduler: Scheduler, control: Control, observer: Observers, connect: Connect) -> None:
        self._fleet = fleet
        self._scheduler = scheduler
        self._control = control
        self._observer = observer
        self._connect = connect
        self._joining: dict[str, EngineConfig] = {}
        self._leaving: dict[str, tuple[float, str]] = {}
        self._following: dict[str, tuple[EngineConfig, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._joined: set[str] = set()
        self._turn = asyncio.Lock()

    @property
    def engines(self) -> list[EngineConfig]:
        """The engines that are there to stay, and those that join."""
        there = [instance.config for name, instance in self._fleet.instances.items() if name not in self._leaving]
        return [*there, *self._joining.values()]

    def change(self, joining: Sequence[EngineConfig], leaving: Sequence[EngineConfig], source: str) -> None:
        """Begins to take engines in and out for a source of `REASONS`; each is reported once it is done."""
        now_s = self._fleet.now_s()
        # One that waits for its place is among those that join at every change, for as long as it is wanted.
        wanted = {engine.name: engine for engine in joining}
        self._following = {name: one for name, one in self._following.items() if wanted.get(name) == one[0]}
        for engine in leaving:
            if self._joining.pop(engine.name, None) is not None:
                self._note("engine.leaves", engine.name, source, before="connecting", after="gone")
            elif engine.name in self._fleet.instances:
                self._leaving[engine.name] = now_s, source
                self._note("engine.leaves", engine.name, source, before="serving", after="leaving")
        for engine in joining:
            if engine.name in self._fleet.instances:
                self._stay(engine, source)
            else:
                self._begin(engine, source)
        self.tick()

    def tick(self) -> None:
        """Keeps requests away from instances that leave, and removes those where nothing has been in flight for a while."""
        now_s, room = self._fleet.now_s(), REMOVED_AT_ONCE
        for name, (since_s, source) in list(self._leaving.items()):
            instance = self._fleet.instances[name]
            self._scheduler.set_draining(name, draining=True)
            instance.draining = True
            if self._scheduler.in_flight(name) or instance.passing:
                self._leaving[name] = now_s, source
            elif room and now_s - since_s >= LEAVES_AFTER_S:
                room -= 1
                self._remove(name)
                self._note("engine.leaves", name, source, before="leaving", after="gone", reason="its requests have ended")

    async def close(self) -> None:
        """Gives up what is being connected, and closes the engines that have joined."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in self._joined:
            await self._fleet.instances[name].engine.close()

    def _begin(self, engine: EngineConfig, source: str) -> None:
        self._joining[engine.name] = engine
        task = asyncio.create_task(self._join(engine, source))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, config: EngineConfig, source: str) -> None:
        name = config.name
        try:
            spec = instance_spec(config)
            engine = await self._connect(config)
        except Exception as error:
            # An adapter is a plugin, and may raise anything.
            if not isinstance(error, HmasError):
                log.exception("connecting engine %s failed", name)
            if self._wanted(config):
                self._note("engine.joins", name, source, after="refused", reason=str(error), severity="error")
            return
        instance = None
        try:
            async with self._turn:
                # Where many join at once, the loop serves requests between one and the next.
                await asyncio.sleep(0)
                if self._wanted(config):
                    if name in self._control.directives.instances:
                        # These are settings of the engine that has just left under this name; the new one has none yet.
                        self._control.apply()
                    self._joined.add(name)
                    self._scheduler.add_instance(spec, self._fleet.now_s())
                    instance = self._fleet.add(config, engine)
                    self._control.apply()
        finally:
            if instance is None:
                await engine.close()
        if instance is None:
            return
        try:
            await self._fleet.poll(instance)
        except Exception as error:
            log.exception("polling engine %s failed", name)
            if self._fleet.instances.get(name) is instance:
                self._fleet.mark_down(name, f"reading it failed: {error}")
        if self._fleet.instances.get(name) is instance:
            self._fleet.poll_regularly(instance)
            if name not in self._leaving:
                self._open(name)
                after = "serving" if instance.healthy else "joined, and does not answer yet"
                self._note("engine.joins", name, source, before="connecting", after=after)

    def _wanted(self, config: EngineConfig) -> bool:
        """Whether an engine that has been connected is still to join; from then on it is no longer connecting."""
        wanted = self._joining.get(config.name) is config
        if wanted:
            del self._joining[config.name]
        return wanted

    def _stay(self, engine: EngineConfig, source: str) -> None:
        """Keeps an instance that has not left yet, if it is to join with the same settings; with others it joins once that one has left."""
        if self._fleet.instances[engine.name].config != engine:
            if engine.name in self._following:
                return
            self._following[engine.name] = engine, source
            reason = "an engine of this name is still leaving, with other settings; this one joins once it has left"
            self._note("engine.joins", engine.name, source, after="waiting", reason=reason)
            return
        self._leaving.pop(engine.name, None)
        self._open(engine.name)
        self._note("engine.joins", engine.name, source, before="leaving", after="serving")

    def _open(self, name: str) -> None:
        draining = name in self._control.directives.draining
        self._scheduler.set_draining(name, draining=draining)
        self._fleet.instances[name].draining = draining

    def _remove(self, name: str) -> None:
        del self._leaving[name]
        self._scheduler.remove_instance(name, self._fleet.now_s())
        engine = self._fleet.remove(name)
        self._joined.discard(name)
        self._control.forget(name)
        task = asyncio.create_task(engine.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if (following := self._following.pop(name, None)) is not None:
            self._begin(*following)

    def _note(
        self, kind: str, name: str, source: str, *, after: str, before: str = "", reason: str = "", severity: Severity = "info"
    ) -> None:
        self._observer.note(kind, name, before=before, after=after, reason=reason or REASONS[source], severity=severity, source=source)
