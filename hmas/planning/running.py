"""Runs a case: workload, scheduler, engines and agents put together, progress told, and stopped in order when asked to."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import LongView, ShortView
from hmas.controller.core.placement import Router
from hmas.controller.core.types import Controls
from hmas.controller.routing import make_router
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
"""Arrivals and endings between two looks at whether to tell progress or to stop."""


@dataclass(frozen=True, slots=True)
class Told:
    """How far a run is: virtual time, and requests that have come and that are done."""

    now_s: float
    come: int
    done: int
    planned: int


@dataclass(slots=True)
class Watch:
    """The outside of a run.

    Attributes:
        tell: Called now and then with how far it is.
        stop: Whether the run is to end early; asked now and then.
        ended: Called with each request that ends.
        viewed: Called with each view that qos makes, where agents steer.
        look: Called now and then with the scheduler and the time. Where it raises, the run is given up without a result.
    """

    tell: Callable[[Told], None] = lambda _told: None
    stop: Callable[[], bool] = lambda: False
    ended: Callable[[Ended], None] = lambda _ended: None
    viewed: Callable[[ShortView | LongView], None] = lambda _view: None
    look: Callable[[Scheduler, float], None] = lambda _scheduler, _now_s: None


@dataclass(frozen=True, slots=True)
class Run:
    """What a case came to.

    Attributes:
        records: One per request of the part that was simulated, in order of arrival.
        stopped_s: Virtual time at which it was asked to stop; None where it went to its end. What was running then was served to its
            end, what waited was left: those records have no outcome.
        violations: What the independent checker found.
        sessions: Sessions that are over, None where the workload has none.
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


class Gate(Router, Protocol):
    """An admission of somebody else's, in the router's place: it lets a request wait where its own account says so."""

    def controls(self) -> Sequence[Periodic]:
        """How it looks at the engines."""
        ...

    def on_end(self, ended: Ended, now_s: float) -> None:
        """Told of each request that ends."""
        ...


def run_case(case: Case, watch: Watch | None = None, load: Load | None = None, gate: Gate | None = None) -> Run:
    """Simulates a case. The same case gives the same run, always.

    Args:
        case: What to run.
        watch: Progress and stopping; they change nothing of what is simulated up to a stop.
        load: The case's workload, where it has been opened already.
        gate: An admission that stands in the router's place.

    Raises:
        ConfigError: The case cannot be run.
        TraceError: Its workload cannot be read.
    """
    case.check()
    load = load or open_load(case)
    if case.warmup_s >= load.duration_s:
        raise ConfigError(f"warm-up is {case.warmup_s:g} s; allowed: less than the arrivals' {load.duration_s:g} s")
    watch = watch or Watch()
    steering = AgentSteering(case, watch.viewed)
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
        sessions=feed.ended,
    )


def build(case: Case, router: Router | None = None) -> tuple[Scheduler, dict[str, EngineModel]]:
    """The scheduler and the engines of a case, as at a gateway's start; `router` in place of the case's."""
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
    """The independent checker's word on a result."""
    profiles: dict[str, Profile] = {name: kind.profile for name, kind in case.fleet.instances().items()}
    arrivals: Iterable[Arrival] | None = feed.issued
    if arrivals is None:
        # As many as came: all of them, unless the run was stopped.
        arrivals = itertools.islice(load.feed(case.fleet.model(case.model), None).arrivals, len(result.records))
    return check(arrivals, result, profiles=profiles, n_run=widest)


@dataclass(slots=True)
class _Guard:
    """Counts what passes, tells progress, and stops a run: no more arrivals, nothing dispatched any more, what runs runs out."""

    watch: Watch
    scheduler: Scheduler
    instances: list[str]
    planned: int
    come: int = 0
    done: int = 0
    now_s: float = 0.0
    stopped_s: float | None = None
    _since: int = field(default=0)

    def passed(self, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        """Hands arrivals on until the run is to stop."""
        for arrival in arrivals:
            yield arrival
            self.come += 1
            self._look()
            if self.stopped_s is not None:
                return

    def following(self, followups: Followups | None) -> Followups | None:
        """Likewise with those that follow from others."""
        if followups is None:
            return None

        def follow(ended: Ended, now_s: float) -> Iterable[Arrival]:
            if self.stopped_s is not None:
                return ()
            come = list(followups(ended, now_s))
            self.come += len(come)
            return come

        return follow

    def ended(self, now_s: float) -> None:
        """A request has ended."""
        self.now_s = now_s
        self.done += 1
        self._look()

    def _look(self) -> None:
        self._since += 1
        if self._since < TELL_EVERY or self.stopped_s is not None:
            return
        self._since = 0
        self.watch.look(self.scheduler, self.now_s)
        self.watch.tell(Told(now_s=self.now_s, come=self.come, done=self.done, planned=self.planned))
        if self.watch.stop():
            self.stopped_s = self.now_s
            for name in self.instances:
                self.scheduler.set_draining(name, True)
