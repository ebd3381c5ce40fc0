"""Runs a case: connects workload, scheduler, engines and agents, reports progress, and stops in order on request."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import LongView, ShortView
from hmas.controller.core.placement import Router
from hmas.controller.core.types import Controls, Request
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec
from hmas.controller.simulation import Arrival, Periodic, RequestRecord, SimulationResult, simulate
from hmas.controller.simulation.check import check
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile
from hmas.planning.case import Case
from hmas.planning.fleet import Kind
from hmas.planning.loads import Feed, Load, open_load
from hmas.planning.steering import AgentSteering, PolicyChange
from hmas.workloads.session_driver import SessionEnd

Followups = Callable[[Ended, float], Iterable[Arrival]]
TELL_EVERY = 256
"""Number of arrivals and ends between two checks whether to report progress or to stop."""


@dataclass(frozen=True, slots=True)
class Told:
    """Progress of a run: virtual time, and the numbers of ended and planned requests."""

    now_s: float
    done: int
    planned: int


@dataclass(slots=True)
class Watch:
    """The callbacks of a run.

    Attributes:
        tell: Called at intervals with the progress.
        stop: Called at intervals; returns whether the run should end early.
        ended: Called with each request that ends.
        viewed: Called with each view that qos makes, if agents control the run.
        look: Called at intervals with the scheduler and the time. If it raises, the run is aborted without a result.
    """

    tell: Callable[[Told], None] = lambda _told: None
    stop: Callable[[], bool] = lambda: False
    ended: Callable[[Ended], None] = lambda _ended: None
    viewed: Callable[[ShortView | LongView], None] = lambda _view: None
    look: Callable[[Scheduler, float], None] = lambda _scheduler, _now_s: None


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a case.

    Attributes:
        records: One per simulated request, in order of arrival.
        stopped_s: Virtual time at which the run was stopped; None if it was completed. Requests that ran then were served to their end;
            requests that waited were not, and their records have no outcome.
        violations: Violations that the independent check found.
        sessions: Ended sessions, None if the workload has no sessions.
        unsent: Calls that were never sent because an earlier call of their session was not answered, with the time of that.
    """

    case: Case
    load: Load
    result: SimulationResult
    records: list[RequestRecord]
    stopped_s: float | None
    violations: list[str]
    actions: int
    changes: list[PolicyChange]
    instances: dict[str, Kind]
    sessions: list[SessionEnd] | None = None
    unsent: Sequence[Request] = ()


class Gate(Router, Protocol):
    """A foreign admission control in place of the router: it lets a request wait according to its own accounting."""

    def controls(self) -> Sequence[Periodic]:
        """Its periodic readings of the engines."""
        ...

    def on_end(self, ended: Ended, now_s: float) -> None:
        """Called with each request that ends."""
        ...


def run_case(
    case: Case, watch: Watch | None = None, load: Load | None = None, gate: Gate | None = None, steering: AgentSteering | None = None
) -> Run:
    """Simulates a case. The same case gives the same run, always.

    Args:
        case: The case to run.
        watch: Callbacks for progress and stop; they do not affect the simulation before a stop.
        load: The case's workload, if it has been opened already.
        gate: An admission control in place of the router.
        steering: The case's agents, if they are not to be the usual ones.

    Raises:
        ConfigError: The case cannot be run.
        TraceError: Its workload cannot be read.
    """
    case.check()
    load = load or open_load(case)
    if case.warmup_s >= load.duration_s:
        raise ConfigError(f"warm-up is {case.warmup_s:g} s; allowed: less than the arrivals' {load.duration_s:g} s")
    watch = watch or Watch()
    steering = steering or AgentSteering(case, watch.viewed)
    scheduler, engines = build(case, gate)
    guard = _Guard(watch, scheduler, list(engines), load.count)

    def on_end(ended: Ended, now_s: float) -> None:
        steering.on_end(ended, now_s)
        if gate is not None:
            gate.on_end(ended, now_s)
        guard.watch.ended(ended)
        guard.ended(now_s)

    feed = load.feed(case.fleet.model(case.model), steering.estimate)
    result = simulate(
        guard.passed(feed.arrivals),
        engines,
        scheduler,
        controls=[*steering.controls(), *(gate.controls() if gate is not None else ())],
        on_end=on_end,
        followups=guard.following(feed.followups),
    )
    driver = feed.driver
    records = list(result.records)
    if guard.stopped_s is not None:
        records = [record for record in records if record.arrival_s <= guard.stopped_s]
    return Run(
        case=case,
        load=load,
        result=result,
        records=records,
        stopped_s=guard.stopped_s,
        violations=judge(case, load, feed, result, steering.widest),
        actions=steering.actions,
        changes=steering.changes,
        instances=case.fleet.instances(),
        sessions=None if driver is None else driver.ended,
        unsent=() if driver is None else tuple(driver.unsent(whole=guard.stopped_s is None)),
    )


def build(case: Case, router: Router | None = None) -> tuple[Scheduler, dict[str, EngineModel]]:
    """Makes the scheduler and the engines of a case as at a gateway's start; `router` replaces that of the case."""
    kinds = case.fleet.instances()
    model = case.fleet.model(case.model)
    scheduler = Scheduler(
        settings=case.admission,
        instances=[
            InstanceSpec(
                name=name,
                capacity_n_run=kind.n_run,
                kv_capacity_tokens=kind.profile.kv_capacity_tokens,
                kv_bytes_per_token=kind.profile.kv_bytes_per_token,
                models=frozenset({model}),
            )
            for name, kind in kinds.items()
        ],
        router=router or make_router(case.router),
        policy=case.policy,
        parameters=case.parameters,
    )
    for name, kind in kinds.items():
        scheduler.set_controls(name, Controls(n_run=kind.n_run))
    return scheduler, {name: EngineModel(kind.profile, n_run=kind.n_run, token_budget=kind.token_budget) for name, kind in kinds.items()}


def judge(case: Case, load: Load, feed: Feed, result: SimulationResult, widest: Mapping[str, int]) -> list[str]:
    """Runs the independent check on a result; returns the violations."""
    profiles: dict[str, Profile] = {name: kind.profile for name, kind in case.fleet.instances().items()}
    arrivals: Iterable[Arrival] | None = feed.issued
    if arrivals is None:
        # The requests that arrived: all of them, unless the run was stopped.
        arrivals = itertools.islice(load.feed(case.fleet.model(case.model), None).arrivals, len(result.records))
    return check(arrivals, result, profiles=profiles, n_run=widest)


@dataclass(slots=True)
class _Guard:
    """Counts requests, reports progress, and stops a run: no more arrivals and dispatches, while running requests are served."""

    watch: Watch
    scheduler: Scheduler
    instances: list[str]
    planned: int
    done: int = 0
    now_s: float = 0.0
    stopped_s: float | None = None
    _since: int = field(default=0)

    def passed(self, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        """Passes arrivals on until the run is stopped."""
        for arrival in arrivals:
            yield arrival
            self.now_s = max(self.now_s, arrival.request.arrival_s)
            self._look()
            if self.stopped_s is not None:
                return

    def following(self, followups: Followups | None) -> Followups | None:
        """The same for follow-up requests."""
        if followups is None:
            return None

        def follow(ended: Ended, now_s: float) -> Iterable[Arrival]:
            return followups(ended, now_s) if self.stopped_s is None else ()

        return follow

    def ended(self, now_s: float) -> None:
        """Counts an ended request."""
        self.now_s = now_s
        self.done += 1
        self._look()

    def _look(self) -> None:
        self._since += 1
        if self._since < TELL_EVERY or self.stopped_s is not None:
            return
        self._since = 0
        self.watch.look(self.scheduler, self.now_s)
        self.watch.tell(Told(now_s=self.now_s, done=self.done, planned=self.planned))
        if self.watch.stop():
            self.stopped_s = self.now_s
            for name in self.instances:
                self.scheduler.set_draining(name, True)
