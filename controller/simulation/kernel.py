"""The event loop of a simulation in virtual time."""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.types import OutcomeKind, Request
from hmas.controller.scheduling.refusals import ended_refused
from hmas.controller.scheduling.results import Dispatch, Ended, Refusal
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation.arrivals import Arrival, ArrivalFeed
from hmas.controller.simulation.heard import Heard
from hmas.controller.simulation.result import EngineTotals, RequestRecord, SimulationResult, record_of, record_of_unserved
from hmas.engines.base import SNAPSHOT_EVERY_S
from hmas.engines.errors import EngineError
from hmas.engines.sim.model import EngineModel, SimRequest

_GRACE_S = 600.0

Control = Callable[[float, Scheduler, Mapping[str, EngineModel]], None]
"""A control law: `(now_s, scheduler, engines by name)`. It may read and control both, as agents do through the gateway."""


@dataclass(frozen=True)
class Periodic:
    """A control law that runs every `every_s` (more than 0) of virtual time, the first time one period after the start."""

    every_s: float
    run: Control


def simulate(
    arrivals: Iterable[Arrival],
    engines: Mapping[str, EngineModel],
    scheduler: Scheduler,
    *,
    controls: Sequence[Periodic] = (),
    on_end: Callable[[Ended, float], None] | None = None,
    followups: Callable[[Ended, float], Iterable[Arrival]] | None = None,
    tick_s: float = 0.1,
    until_s: float | None = None,
) -> SimulationResult:
    """Runs requests through a scheduler and its engines in virtual time, without network or overhead of the gateway.

    Events at the same time have this order: tokens of engine steps that end, arrivals, the gateway's tick (deadlines), dispatch and the
    reading of the engines if they are read then, control laws in the order given, dispatch, then the next steps of idle engines. The same
    input always gives the same result.

    The cost is O(log n) for each arrival, dispatch, first token and end, and O(instances) for each tick, regardless of the number of
    tokens.

    Args:
        arrivals: Requests in order of arrival; equal times keep the given order. It may be a generator, which is read one ahead.
        engines: Engine models by the names of the scheduler's instances.
        scheduler: A fresh scheduler, or one from an earlier run that has ended.
        controls: Control laws.
        on_end: Called with each request that ends or is refused at its arrival, as telemetry would be.
        followups: Returns requests that follow from the end of one, each at `now_s` or later: a retry, or the next call of a session.
        tick_s: The gateway's tick.
        until_s: When to stop in any case; None for 600 s after the last arrival. The run stops earlier if all requests have ended.

    Raises:
        SchedulingError: Arrivals are not sorted, the scheduler dispatches to an unknown engine, or a sum does not balance.
    """
    if tick_s <= 0 or any(control.every_s <= 0 for control in controls):
        raise SchedulingError("tick_s and every control's every_s must be more than 0")
    kernel = _Kernel(ArrivalFeed(arrivals), engines, scheduler, until_s)
    kernel.on_end = on_end
    kernel.followups = followups
    kernel.every(tick_s, kernel.tick)
    kernel.every(SNAPSHOT_EVERY_S, kernel.poll)
    for control in controls:
        kernel.every(control.every_s, kernel.bind(control.run))
    for name, heard in kernel.heard.items():
        scheduler.attach(name, heard)
    try:
        return kernel.run()
    finally:
        for name in engines:
            scheduler.attach(name, None)


class _Live:
    """A request between arrival and end: its index in the records, and the data that only the engine knows."""

    __slots__ = ("arrival", "instance", "number", "output_tokens")

    def __init__(self, arrival: Arrival, number: int) -> None:
        request = arrival.request
        cap = arrival.output_tokens if request.max_output_tokens is None else request.max_output_tokens
        self.arrival = arrival
        self.number = number
        self.output_tokens = max(1, min(arrival.output_tokens, cap))
        self.instance = ""


class _Engine:
    """A running engine. `version` distinguishes the end of the current stretch from the ends of stretches that were cut."""

    def __init__(self, name: str, model: EngineModel) -> None:
        self.name = name
        self.model = model
        self.version = 0
        self.begun_s = 0.0
        self.steps = 0
        self.busy_s = 0.0


class _Kernel:
    """The state of one run."""

    def __init__(self, feed: ArrivalFeed, engines: Mapping[str, EngineModel], scheduler: Scheduler, until_s: float | None) -> None:
        self._feed = feed
        self._models = engines
        self._engines = {name: _Engine(name, model) for name, model in engines.items()}
        self._scheduler = scheduler
        self._until_s = until_s
        self._now_s = feed.last_s
        # Rank 0: ends of stretches; 1 and above: periodic work. Arrivals come between them, in `_advance`.
        self._events: list[tuple[float, int, int, Callable[[float], None] | _Engine, int]] = []
        self._pushed = 0
        self._periodic = 0
        self._touched: dict[str, _Engine] = {}
        # Whether an event has happened after which the gateway calls for dispatches; tokens alone do not count.
        self._stirred = False
        self._live: dict[str, _Live] = {}
        self._deadlines: list[tuple[float, int, str]] = []
        self._records: list[RequestRecord | None] = []
        self.heard = {name: Heard(model) for name, model in engines.items()}
        self.on_end: Callable[[Ended, float], None] | None = None
        self.followups: Callable[[Ended, float], Iterable[Arrival]] | None = None

    def every(self, every_s: float, work: Callable[[float], None]) -> None:
        """Schedules periodic work; at equal times it runs in the order of the calls of this method."""
        self._periodic += 1
        rank, start_s = self._periodic, self._now_s
        count = 0

        def fire(now_s: float) -> None:
            nonlocal count
            work(now_s)
            count += 1
            # Multiples of the period, not sums, so that the times do not drift.
            self._push(start_s + (count + 1) * every_s, rank, fire)

        self._push(start_s + every_s, rank, fire)

    def bind(self, run: Control) -> Callable[[float], None]:
        """A control law as periodic work. It reads the engines' current state, and its changes apply after the current step."""

        def work(now_s: float) -> None:
            for engine in self._engines.values():
                engine.model.sync(now_s)
            run(now_s, self._scheduler, self._models)
            self._stirred = True
            self._touched.update(self._engines)

        return work

    def run(self) -> SimulationResult:
        """Processes all events."""
        for name, engine in self._engines.items():
            self._scheduler.observe(engine.model.snapshot(name, self._now_s))
        while self._live or self._feed.next_s != float("inf"):
            now_s = self._advance()
            if now_s is None:
                break
            self._dispatch(now_s)
            if self._touched:
                self._step(now_s)
        return self._result()

    def _dispatch(self, now_s: float) -> None:
        """Sends what can be sent, if anything has happened after which the gateway looks for that."""
        if not self._stirred:
            return
        self._stirred = False
        # The gateway sweeps between other callbacks so as not to block its event loop; here it is done at once.
        while self._scheduler.behind:
            self._scheduler.sweep(now_s)
        for dispatch in self._scheduler.dispatch(now_s):
            self._send(dispatch, now_s)

    def poll(self, now_s: float) -> None:
        """Takes a snapshot of every engine, as often as the gateway does, which dispatches while the engines answer."""
        for engine in self._engines.values():
            engine.model.sync(now_s)
        taken = [engine.model.snapshot(name, now_s) for name, engine in self._engines.items()]
        self._dispatch(now_s)
        for snapshot in taken:
            self._scheduler.observe(snapshot)

    def tick(self, now_s: float) -> None:
        """The work of the gateway's tick: ends waiting and running requests whose deadline has passed."""
        self._stirred = True
        for engine in self._engines.values():
            engine.model.sync(now_s)
        dropped = self._scheduler.expire(now_s)
        while dropped:
            for one in dropped:
                self._ended(one.ended, now_s)
            dropped = self._scheduler.drop_due(now_s)
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number, request_id = heapq.heappop(self._deadlines)
            live = self._live.get(request_id)
            if live is not None and live.number == number:
                self._touched[live.instance] = self._engines[live.instance]
                ended = self._scheduler.end(request_id, OutcomeKind.TIMED_OUT, now_s)
                self.heard[live.instance].breaks_off(request_id, now_s)
                self._models[live.instance].abort(request_id)
                self._ended(ended, now_s)

    def _advance(self) -> float | None:
        """Advances to the time of the next event and processes it; returns None if that is after the end."""
        feed = self._feed
        now_s = min(feed.next_s, self._events[0][0])
        until_s = self._until_s
        if until_s is None:
            until_s = feed.last_s + _GRACE_S if feed.next_s == float("inf") else now_s
        if now_s > until_s:
            return None
        assert now_s >= self._now_s, "virtual time does not go back"
        self._now_s = now_s
        self._fire(now_s, last_rank=0)
        while feed.next_s <= now_s:
            self._submit(feed.pop(), now_s)
        self._fire(now_s, last_rank=self._periodic)
        return now_s

    def _fire(self, now_s: float, *, last_rank: int) -> None:
        events = self._events
        while events[0][0] <= now_s and events[0][1] <= last_rank:
            _, _, _, work, version = heapq.heappop(events)
            if not isinstance(work, _Engine):
                work(now_s)
            elif work.version == version:
                self._finish(work, now_s)

    def _push(self, at_s: float, rank: int, work: "Callable[[float], None] | _Engine", version: int = 0) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at_s, rank, self._pushed, work, version))

    def _submit(self, arrival: Arrival, now_s: float) -> None:
        request = arrival.request
        if arrival.block_hashes and self._scheduler.wants_blocks:
            request = msgspec.structs.replace(request, blocks=arrival.gateway_blocks())
        estimates = arrival.estimate(request, now_s)
        outcome = self._scheduler.submit(request, estimates, now_s, arrival.weight)
        if isinstance(outcome, Refusal):
            self._records.append(record_of_unserved(request, outcome))
            self._tell(ended_refused(request, estimates, outcome, self._scheduler.policy, now_s), now_s)
            return
        self._stirred = True
        live = self._live[request.id] = _Live(arrival, len(self._records))
        self._records.append(None)
        if arrival.answer is not None:
            self._push(now_s + arrival.answer_s, 0, lambda at_s: self._answered(live, at_s))
        for dropped in self._scheduler.outranked():
            self._ended(dropped.ended, now_s, dropped.refusal.message)

    def _answered(self, live: _Live, now_s: float) -> None:
        """Applies the agents' estimates of a request, which was not held up for them."""
        request, answer = live.arrival.request, live.arrival.answer
        if answer is None or self._live.get(request.id) is not live:
            return
        estimates = answer(request, now_s)
        if estimates is not None:
            self._scheduler.revise(request.id, estimates, now_s)
            self._stirred = True

    def _send(self, dispatch: Dispatch, now_s: float) -> None:
        request = dispatch.entry.request
        engine = self._engines.get(dispatch.instance)
        if engine is None:
            raise SchedulingError(f"instance {dispatch.instance!r} has no engine model; there are: {', '.join(self._engines)}")
        live = self._live[request.id]
        live.instance = dispatch.instance
        if request.deadline_s != float("inf"):
            heapq.heappush(self._deadlines, (request.deadline_s, live.number, request.id))
        front_end_ms = engine.model.profile.request_ms
        if front_end_ms:
            self._push(now_s + front_end_ms / 1000.0, 0, lambda at_s: self._enter(live, engine, at_s))
        else:
            self._enter(live, engine, now_s)

    def _enter(self, live: _Live, engine: _Engine, now_s: float) -> None:
        """Adds a request to the engine after its time in the engine's front end."""
        request = live.arrival.request
        if self._live.get(request.id) is not live:
            return
        engine.model.sync(now_s)
        self._touched[engine.name] = engine
        try:
            engine.model.add(_sim_request(request, live, engine.model.profile.block_size, now_s))
            if not request.stream:
                self.heard[engine.name].whole.add(request.id)
        except EngineError as error:
            ended = self._scheduler.end(request.id, OutcomeKind.REJECTED, now_s)
            self._ended(msgspec.structs.replace(ended, status=400), now_s, reason=str(error))

    def _step(self, now_s: float) -> None:
        """For engines that have changed: begins the next stretch, or schedules the earlier end of a stretch that was cut."""
        for engine in self._touched.values():
            model = engine.model
            due_s = model.due_s
            if due_s is not None and due_s <= now_s:
                # The stretch was cut at a step that ends at this moment, so only a new stretch begins.
                self._finish(engine, now_s)
                due_s = None
            if due_s is None:
                engine.begun_s = now_s
                due_s = model.begin(now_s)
            if due_s is not None:
                engine.version += 1
                self._push(due_s, 0, engine, engine.version)
        self._touched.clear()

    def _finish(self, engine: _Engine, now_s: float) -> None:
        """Ends a stretch: reports first tokens and finished requests to the scheduler."""
        self._touched[engine.name] = engine
        stretch = engine.model.end()
        engine.version += 1
        engine.steps += stretch.steps
        engine.busy_s += now_s - engine.begun_s
        scheduler, live, whole = self._scheduler, self._live, self.heard[engine.name].whole
        for event in stretch.first:
            if event.first and event.id not in whole:
                scheduler.progress(event.id, 1, now_s)
        for event in stretch.finished:
            if event.id in live:
                tokens = event.tokens_so_far if event.id in whole else None
                if tokens is None and not event.first:
                    scheduler.progress(event.id, event.tokens_so_far, now_s)
                cached_tokens = event.cached_tokens if live[event.id].arrival.block_hashes else None
                self._ended(scheduler.end(event.id, OutcomeKind.COMPLETED, now_s, tokens, cached_tokens), now_s)

    def _ended(self, ended: Ended, now_s: float, reason: str = "") -> None:
        self._stirred = True
        live = self._live.pop(ended.entry.request.id)
        if live.instance:
            self.heard[live.instance].whole.discard(ended.entry.request.id)
        self._records[live.number] = record_of(ended, reason)
        self._tell(ended, now_s)

    def _tell(self, ended: Ended, now_s: float) -> None:
        """Reports an end, and takes the requests that follow from it."""
        if self.on_end is not None:
            self.on_end(ended, now_s)
        if self.followups is not None:
            for arrival in self.followups(ended, now_s):
                self._feed.push(arrival, now_s)

    def _result(self) -> SimulationResult:
        self._scheduler.check_conservation()
        for live in self._live.values():
            self._records[live.number] = record_of_unserved(live.arrival.request)
        totals: dict[str, EngineTotals] = {}
        for name, engine in self._engines.items():
            engine.model.sync(self._now_s)
            snapshot = engine.model.snapshot(name, self._now_s)
            totals[name] = EngineTotals(
                steps=engine.steps,
                busy_s=engine.busy_s,
                prompt_tokens=snapshot.prompt_tokens_total,
                generation_tokens=snapshot.generation_tokens_total,
                preemptions=snapshot.preemptions_total,
                kv_blocks_peak=engine.model.kv_blocks_peak,
            )
        return SimulationResult(
            records=[record for record in self._records if record is not None],
            counts=self._scheduler.counts(),
            engines=totals,
            end_s=self._now_s,
        )


def _sim_request(request: Request, live: _Live, block_size: int, now_s: float) -> SimRequest:
    arrival = live.arrival
    hashes, hash_tokens = arrival.block_hashes, arrival.hash_tokens
    if hashes and hash_tokens % block_size:
        # The number of a block stands for all before it too, so that the last one of several stands for these.
        whole = math.lcm(hash_tokens, block_size)
        hashes, hash_tokens = hashes[whole // hash_tokens - 1 :: whole // hash_tokens], whole
    return SimRequest(
        request.id,
        max(1, request.prompt_tokens),
        live.output_tokens,
        request.priority,
        now_s,
        hashes,
        hash_tokens,
    )
