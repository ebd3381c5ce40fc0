"""The gateway as a whole: its parts, its cycle, and its shutdown."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.config.derived import overrides_dir, running_agents
from hmas.controller.config.reload import differences, fleet_change, taken
from hmas.controller.config.schema import Config, EngineConfig
from hmas.controller.control.agent_liveness import AgentLiveness
from hmas.controller.control.agent_scores import AgentScores
from hmas.controller.control.apply import with_settings
from hmas.controller.control.asking import Asking
from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.bus_watch import BusWatch
from hmas.controller.gateway.control_loop.agent_watch import AgentWatch
from hmas.controller.gateway.control_loop.apply import Control
from hmas.controller.gateway.control_loop.override_watcher import OverrideWatch
from hmas.controller.gateway.control_loop.subscriber import AgentSubscriber
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.instances.failover import Failover
from hmas.controller.gateway.instances.membership import Connect, Membership
from hmas.controller.gateway.instances.monitor import Fleet, Instance
from hmas.controller.gateway.make_scheduler import make_scheduler
from hmas.controller.gateway.metrics_page import MetricsPage
from hmas.controller.gateway.requests.active_request import Ending
from hmas.controller.gateway.requests.apis.kept_responses import KeptResponses
from hmas.controller.gateway.requests.auth import Authenticator
from hmas.controller.gateway.requests.completion import CompletionHandler
from hmas.controller.gateway.requests.embeddings import PassThrough
from hmas.controller.gateway.requests.manager import RequestManager
from hmas.controller.gateway.requests.parse import BodyParser
from hmas.controller.gateway.requests.routes import PublicRoutes
from hmas.controller.observability.agent_metrics import ModelReports
from hmas.controller.observability.completions import CompletionRecorder
from hmas.controller.observability.decision_log import DecisionLog
from hmas.controller.observability.defaults import DispatchedOnDefaults
from hmas.controller.observability.event_log import EventLog
from hmas.controller.observability.metrics import Metrics
from hmas.controller.observability.observer import Observer, Observers
from hmas.controller.observability.request_trace import RequestTraces
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.engines.base import Engine

if TYPE_CHECKING:
    from hmas.controller.gateway.kv_events.service import KvEvents

MAX_SIDE_TASKS = 4096
EXPORTER_CLOSE_S = 2.0
STRANDED_EVERY_S = 1.0
HEADS_EVERY_S = 1.0
RESUME_MOST_S = 2.0
log = logging.getLogger(__name__)


class Gateway:
    """All parts of a gateway except its transport.

    Attributes:
        routes: Serves the requests of the public port.
        observer: Passes every event to all that listen: `event_log`, `metrics`, `completions`, `traces` and the exporters.
        manager, fleet, scheduler, control, watch, agents, subscriber, decisions, model_reports, auth: Its other parts.
        liveness, on_defaults: When each agent last answered, and the dispatches that it answered too late for.
        bus_watch, membership: Whether it has the bus; engines that join and leave.
        mqtt: Reports on the connection with the MQTT broker; None without one.
        kv_events: What engines report of their prefix caches; None where none has `kv_events`.
        draining: Whether it takes no new requests any more.
    """

    def __init__(
        self,
        config: Config,
        *,
        bus: Bus,
        engines: Sequence[tuple[EngineConfig, Engine]],
        connect: Connect,
        clock: Clock,
        on_cycle: Callable[[], None] | None = None,
        scheduler: Scheduler | None = None,
        exporters: Sequence[Observer] = (),
    ) -> None:
        """Creates and connects the parts.

        Args:
            config: The whole configuration.
            bus: The bus; the caller starts and closes it.
            engines: Every configured engine with its adapter; the caller closes it.
            connect: Makes the adapter of an engine that joins later, which is closed here.
            clock: The clock.
            on_cycle: Called after every finished cycle, for the service manager's watchdog.
            scheduler: A fresh one from `make_scheduler` with the same configuration, such as one that keeps a log; None creates it here.
            exporters: Observers beside those that ship; they are closed with the gateway.
        """
        self.config = config
        self.bus = bus
        self.clock = clock
        self.started_s = clock.now_s()
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self.draining = False
        self._on_cycle = on_cycle
        self._side_tasks: set[asyncio.Task[object]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.mqtt: Callable[[], dict[str, Any]] | None = None
        self._router_faults = 0
        self._exporters = tuple(exporters)
        self.scheduler = make_scheduler(config) if scheduler is None else scheduler
        self.event_log = EventLog(bus)
        self.metrics = Metrics(config.tenants)
        self.completions = CompletionRecorder(bus, clock, self.metrics.tenant_label)
        self.traces = RequestTraces(self.scheduler, kept=config.gateway.explain_kept, kept_s=config.gateway.explain_s)
        self.observer = Observers([self.event_log, self.metrics, self.completions, self.traces, *exporters], clock)
        self.fleet = Fleet(engines, clock, self.observer, stall_s=config.gateway.engine_stall_s)
        self.control = Control(config=config, scheduler=self.scheduler, fleet=self.fleet, observer=self.observer, clock=clock)
        self.bus_watch = BusWatch(bus, self.observer, on_return=self._post_overrides)
        self.membership = Membership(
            fleet=self.fleet, scheduler=self.scheduler, control=self.control, observer=self.observer, connect=connect
        )
        targets = config.slo.targets()
        self.on_defaults = DispatchedOnDefaults(running_agents(config.agents), self.metrics.registry)
        scores = AgentScores(judging=config.agents.set_aside, bound_level=1.0 - config.agents.statera_epsilon)
        self.agents = AgentWatch(self.observer, self.control, scores, targets=targets, on_defaults=self.on_defaults)
        self.liveness = AgentLiveness()
        self.manager = RequestManager(
            scheduler=self.scheduler,
            fleet=self.fleet,
            history=History(targets),
            bus=bus,
            observer=self.observer,
            clock=clock,
            share_prompts=config.gateway.share_prompts,
            weight_of=self.control.weight_of,
            agents=self.agents,
            liveness=self.liveness,
            asking=Asking(all_requests=config.agents.ask == "all", sample_rps=config.agents.ask_sample_rps, now_s=clock.now_s()),
        )
        self.fleet.on_snapshot = self.scheduler.observe
        self.fleet.on_ceiling = self.control.on_ceiling
        self.fleet.on_models = self._models_changed
        self.fleet.on_probing = self.scheduler.set_probing
        self.fleet.on_lost = self.manager.recall
        self.fleet.on_avoided = self.scheduler.set_avoided
        self.fleet.longest_prompt = self.scheduler.longest_prompt
        self.observer.control_changed(None, self.control.directives, self.started_s)
        self.model_reports = ModelReports(clock, self.metrics.registry)
        self.decisions = DecisionLog()
        self.subscriber = AgentSubscriber(
            running=running_agents(config.agents),
            bus=bus,
            manager=self.manager,
            control=self.control,
            reports=self.model_reports,
            decisions=self.decisions,
            liveness=self.liveness,
            observer=self.observer,
            clock=clock,
        )
        self.watch = OverrideWatch(overrides_dir(config), control=self.control, bus=bus, observer=self.observer, clock=clock)
        self.watch.on_held = self._overrides_held
        self.auth = Authenticator(config.tenants, no_auth=config.gateway.no_auth)
        self.kv_events: KvEvents | None = None
        if any(engine.kv_events for engine in config.engines):
            from hmas.controller.gateway.kv_events import service  # noqa: PLC0415  without events nothing of it is loaded

            self.kv_events = service.KvEvents(config, self.fleet, self.observer, self.metrics.registry)
        self.failover = Failover(config.models, self.fleet, self.observer)
        self.routes = self._make_routes()

    async def start(self) -> None:
        """Restores the last state, reads every engine and override once, and starts the cycle."""
        await self.watch.scan(announce=True)
        if self.config.agents.enabled:
            try:
                async with asyncio.timeout(RESUME_MOST_S):
                    await self.subscriber.resume()
            except TimeoutError:
                log.warning("the bus does not answer: the gateway starts without what the agents said last")
        await self.fleet.poll_all()
        self.observer.note(
            "gateway", "gateway", before="stopped", after="started", reason=f"{len(self.fleet.instances)} engines configured"
        )
        loops: list[Coroutine[Any, Any, None]] = [] if self.kv_events is None else [self.kv_events.start()]
        loops += [self.fleet.run(), self.watch.run(), self._cycle()]
        if self.config.agents.enabled:
            loops += [self.subscriber.run(), self.subscriber.watch_views()]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def reload(self, config: Config, source: str = "operator") -> None:
        """Applies what it can of a reloaded configuration, and reports what needs a restart.

        Args:
            config: As it was read again.
            source: What has changed it: `operator`, `file` (the file of engines) or `dns`. Events name it.
        """
        self.config = msgspec.structs.replace(self.config, engines=self.membership.engines)
        found, fleet = differences(self.config, config), fleet_change(self.config, config)
        live = [setting for setting, is_live in found if is_live]
        rest = [setting for setting, is_live in found if not is_live]
        self.config = taken(self.config, config)
        self.auth.reload(self.config.tenants)
        self.metrics.know(self.config.tenants)
        self.scheduler.set_tpot_guard(self.config.scheduler.tpot_guard)
        self.agents.scores.bound_level = 1.0 - config.agents.statera_epsilon
        self.control.reload(self.config)
        self.failover.reload(self.config.models)
        self.membership.change(fleet.joining, fleet.leaving, source)
        self.observer.note(
            "config",
            "configuration",
            after=f"taken: {', '.join(live) or 'nothing'}",
            reason=f"takes a restart: {', '.join(rest)}" if rest else "",
            severity="warning" if rest else "info",
            source=source,
        )

    def names_told(self, name: str, reason: str) -> None:
        """Reports that a name in DNS gets no answer, or that it does again (`reason` empty)."""
        after = "no answer" if reason else "answers"
        self.observer.note("engine.discovery", name, after=after, reason=reason, severity="warning" if reason else "info", source="dns")

    def reload_refused(self, reason: str, source: str = "operator") -> None:
        """Reports that a configuration that `source` has changed is invalid; everything stays as it is."""
        self.observer.note("config", "configuration", after="refused", reason=reason, severity="error", source=source)

    async def drain(self, hurry: asyncio.Event | None = None, served: Callable[[], Awaitable[None]] | None = None) -> None:
        """Takes no new requests and waits for running ones until `drain_s` or `hurry`; then ends the rest with an error.

        `served` returns when the public port has answered what it serves: also requests that no queue knows, and slow clients.
        """
        self.draining = True
        self.observer.note(
            "gateway", "gateway", before="serving", after="draining", reason=f"{len(self.manager.active)} requests in progress"
        )
        await self._wait_for_idle(hurry or asyncio.Event(), served)
        left = list(self.manager.active.values())
        for live in left:
            ending = Ending(OutcomeKind.FAILED, 503, "shutting_down", "the gateway is shutting down", retry_after_s=5)
            if live.dispatched_s:
                live.abort(ending)
            else:
                self.manager.drop(live, ending)
        tasks = [live.task for live in left]
        if tasks:
            await asyncio.wait(tasks, timeout=3.0)
        self.observer.note("gateway", "gateway", before="draining", after="stopped", reason=f"{len(left)} requests were aborted")

    async def _wait_for_idle(self, hurry: asyncio.Event, served: Callable[[], Awaitable[None]] | None) -> None:
        async def idle() -> None:
            await self.manager.wait_idle()
            if served is not None:
                await served()

        waits = [asyncio.create_task(idle()), asyncio.create_task(hurry.wait())]
        await asyncio.wait(waits, timeout=self.config.gateway.drain_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def close(self) -> None:
        """Stops the cycle and all background tasks."""
        pending: set[asyncio.Task[Any]] = {*self._tasks, *self._side_tasks}
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=1.0)
        await self.membership.close()
        if self.kv_events is not None:
            self.kv_events.close()
        for exporter in self._exporters:
            try:
                async with asyncio.timeout(EXPORTER_CLOSE_S):
                    await exporter.close()
            except Exception:
                log.exception("closing the exporter %s failed", type(exporter).__name__)

    def readiness(self) -> list[str]:
        """Reasons for not being ready; empty if it is ready."""
        if self.draining:
            return ["draining: the gateway is shutting down"]
        closed = {name: instance.closed_because for name, instance in self.fleet.instances.items()}
        if not all(closed.values()):
            return []
        if not any(instance.healthy for instance in self.fleet.instances.values()):
            return ["no healthy engine"] if closed else ["no engine is configured"]
        return ["no engine takes requests: " + ", ".join(f"{name} ({reason})" for name, reason in closed.items())]

    def _make_routes(self) -> PublicRoutes:
        gateway, auth, bodies = self.config.gateway, self.auth, BodyParser()
        kept = KeptResponses(fleet=self.fleet, auth=auth, observer=self.observer, correct=self.scheduler.tenancy.correct)
        completions = CompletionHandler(
            manager=self.manager,
            fleet=self.fleet,
            failover=self.failover,
            auth=auth,
            kept=kept,
            bodies=bodies,
            observer=self.observer,
            clock=self.clock,
            targets=self.config.slo.targets(),
            request_timeout_s=gateway.request_timeout_s,
            spawn=self._spawn,
            cached_of=None if self.kv_events is None else self.kv_events.cached_of,
        )
        embeddings = PassThrough(
            fleet=self.fleet,
            charge=self.manager.charge_passing,
            auth=auth,
            bodies=bodies,
            observer=self.observer,
            timeout_s=gateway.request_timeout_s,
            head_timeout_s=gateway.engine_head_timeout_s,
        )
        return PublicRoutes(
            complete=completions.serve,
            embed=embeddings.serve,
            kept=kept.serve,
            auth=auth,
            fleet=self.fleet,
            observer=self.observer,
            readiness=self.readiness,
            refusal=self._refusal,
            exposition=MetricsPage(self).read,
        )

    async def _cycle(self) -> None:
        """Runs every `tick_s`: deadlines, fallbacks for silent agents, one more planning pass, and the snapshot for the agents."""
        tick_s = self.config.scheduler.tick_s
        stranded_s = heads_s = 0.0
        while True:
            await asyncio.sleep(tick_s)
            try:
                self.manager.expire()
                now_s = self.clock.now_s()
                if now_s - stranded_s >= STRANDED_EVERY_S:
                    # If there are more than one batch, the rest follows with the next tick.
                    stranded_s = 0.0 if self.manager.give_up_stranded() else now_s
                if now_s - heads_s >= HEADS_EVERY_S:
                    heads_s = now_s
                    self.manager.recall_silent(self.config.gateway.engine_head_timeout_s)
                self.control.tick()
                self.membership.tick()
                self.manager.pump_soon()
                self.bus_watch.look()
                self._watch_routers()
                snapshot = with_settings(self.scheduler.snapshot(now_s, self.name), self.control.directives)
                self.bus.post(snapshot)
                self.observer.sampled(snapshot)
                if self._on_cycle is not None:
                    self._on_cycle()
            except Exception:
                log.exception("a cycle of the gateway failed")

    def _models_changed(self, instance: Instance) -> None:
        """Passes on which models an instance serves now."""
        self.scheduler.set_models(instance.name, instance.models, instance.context)

    def _post_overrides(self) -> None:
        self.bus.post(msgspec.structs.replace(self.control.notice, sent_s=self.clock.now_s()))

    def _overrides_held(self) -> None:
        """Sends what may go now. An engine that leaves stays closed, though an operator no longer drains it."""
        self.membership.tick()
        self.manager.pump_soon()

    def _watch_routers(self) -> None:
        """Reports rankings that could not be followed, in one event for all since the last tick."""
        faults, fault = self.scheduler.router_fault
        if faults > self._router_faults:
            self.observer.note(
                "router.fault", "router", after=f"{faults - self._router_faults} to the emptiest instance", reason=fault, severity="error"
            )
            self._router_faults = faults

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs work in the background of the request that caused it. Bounded: beyond the limit the work is dropped."""
        if len(self._side_tasks) >= MAX_SIDE_TASKS:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    def _refusal(self) -> ApiError | None:
        if not self.draining:
            return None
        return ApiError(503, "draining", "the gateway is shutting down and takes no new requests", retry_after_s=5)
