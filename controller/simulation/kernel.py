"""The event loop of virtual time."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controller.core.errors import SchedulingError
from controller.core.types import Estimates, OutcomeKind, Request
from controller.scheduling.outcomes import Dispatch, Ended, Refusal
from controller.scheduling.scheduler import Scheduler
from controller.simulation.result import EngineTotals, RequestRecord, SimulationResult, record_of, record_of_live, record_of_refused
from engines.errors import EngineError
from engines.sim.model import EngineModel, SimRequest, StepResult

_GRACE_S = 600.0

Control = Callable[[float, Scheduler, Mapping[str, EngineModel]], None]
"""A control law: `(now_s, scheduler, engines by name)`. It may read and steer both, as agents do through the gateway."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come, at `request.arrival_s`.

    Attributes:
        estimate: What is believed when it comes: `(request, now_s)` to estimates, asked at its arrival.
        output_tokens: The true output length, 1 or more: the engine alone gets it.
        weight: Its tenant's weight.
    """

    request: Request
    estimate: Callable[[Request, float], Estimates]
    output_tokens: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Periodic:
    """A control law that runs every `every_s` of virtual time, more than 0; first one period after the start."""

    every_s: float
    run: Control


def simulate(
    arrivals: Sequence[Arrival],
    engines: Mapping[str, EngineModel],
    scheduler: Scheduler,
    *,
    controls: Sequence[Periodic] = (),
    on_end: Callable[[Ended, float], None] | None = None,
    tick_s: float = 0.1,
    until_s: float | None = None,
) -> SimulationResult:
    """Runs requests through a scheduler and its engines in virtual time, without network or overhead of the gateway.

    At any moment: first the tokens of engine steps that end, then arrivals, then the gateway's tick (snapshots of the
    engines, deadlines), then control laws in the order given, then dispatch, then the next steps of idle engines. The same
    input gives the same result, always.

    Args:
        arrivals: Requests; sorted by arrival here, equal times in the order given.
        engines: Engine models by the names of the scheduler's instances.
        scheduler: Fresh, or warm from an earlier run that has ended.
        controls: Control laws.
        on_end: Called with each request that the scheduler ends, as telemetry would be.
        tick_s: The gateway's tick.
        until_s: When to stop in any case; None for 600 s after the last arrival. It stops earlier when all is done.

    Raises:
        SchedulingError: The scheduler dispatches to an engine that is not there, or a sum does not come out.
    """
    if tick_s <= 0 or any(control.every_s <= 0 for control in controls):
        raise SchedulingError("tick_s and every control's every_s must be more than 0")
    ordered = sorted(arrivals, key=lambda arrival: arrival.request.arrival_s)
    last_s = ordered[-1].request.arrival_s if ordered else 0.0
    kernel = _Kernel(ordered, engines, scheduler, on_end, last_s + _GRACE_S if until_s is None else until_s)
    kernel.every(tick_s, kernel.tick)
    for control in controls:
        kernel.every(control.every_s, _bind(control.run, scheduler, engines))
    return kernel.run()


class _Kernel:
    """The state of one run."""

    def __init__(
        self,
        arrivals: list[Arrival],
        engines: Mapping[str, EngineModel],
        scheduler: Scheduler,
        on_end: Callable[[Ended, float], None] | None,
        until_s: float,
    ) -> None:
        self._arrivals = arrivals
        self._next = 0
        self._engines = engines
        self._scheduler = scheduler
        self._on_end = on_end
        self._until_s = until_s
        self._now_s = arrivals[0].request.arrival_s if arrivals else 0.0
        # Rank 0: step ends by instance order; 1 and up: periodic work. Arrivals come between, in `_advance`.
        self._events: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._pushed = 0
        self._periodic = 0
        self._busy: dict[str, StepResult | None] = dict.fromkeys(engines)
        self._steps = dict.fromkeys(engines, 0)
        self._busy_s = dict.fromkeys(engines, 0.0)
        self._true_tokens: dict[str, int] = {}
        # Whether something has happened after which the gateway asks for dispatches: tokens alone are no such thing.
        self._stirred = False
        self._sent: dict[str, tuple[str, float]] = {}
        self._records: dict[str, RequestRecord] = {}

    def every(self, every_s: float, work: Callable[[float], None]) -> None:
        """Schedules periodic work, in the order of the calls where times are equal."""
        self._periodic += 1
        rank, start_s = self._periodic, self._now_s
        count = 0

        def fire(now_s: float) -> None:
            nonlocal count
            work(now_s)
            count += 1
            # Multiples of the period, not sums of it: no drift.
            self._push(start_s + (count + 1) * every_s, rank, fire)

        self._push(start_s + every_s, rank, fire)

    def run(self) -> SimulationResult:
        """Goes through all events."""
        for name, model in self._engines.items():
            self._scheduler.observe(model.snapshot(name, self._now_s))
        while self._live():
            now_s = self._advance()
            if now_s is None:
                break
            if self._stirred:
                self._stirred = False
                for dispatch in self._scheduler.dispatch(now_s):
                    self._send(dispatch, now_s)
            for name in self._engines:
                if self._busy[name] is None:
                    self._step(name, now_s)
        return self._result()

    def tick(self, now_s: float) -> None:
        """What the gateway does on its tick: engine snapshots in; deadlines out, waiting and running."""
        self._stirred = True
        for name, model in self._engines.items():
            self._scheduler.observe(model.snapshot(name, now_s))
        for dropped in self._scheduler.expire(now_s):
            self._ended(dropped.ended, now_s)
        late = [(request_id, name) for request_id, (name, deadline_s) in self._sent.items() if deadline_s <= now_s]
        for request_id, name in late:
            self._engines[name].abort(request_id)
            self._ended(self._scheduler.end(request_id, OutcomeKind.TIMED_OUT, now_s), now_s)

    def _live(self) -> bool:
        if self._next < len(self._arrivals):
            return True
        counts = self._scheduler.counts()
        return counts.queued + counts.running > 0

    def _advance(self) -> float | None:
        """Goes to the next moment at which something happens and lets it happen; None where that lies past the end."""
        coming_s = self._arrivals[self._next].request.arrival_s if self._next < len(self._arrivals) else float("inf")
        now_s = min(coming_s, self._events[0][0])
        if now_s > self._until_s:
            return None
        assert now_s >= self._now_s, "virtual time does not go back"
        self._now_s = now_s
        self._fire(now_s, last_rank=0)
        while self._next < len(self._arrivals) and self._arrivals[self._next].request.arrival_s <= now_s:
            self._submit(self._arrivals[self._next], now_s)
            self._next += 1
        self._fire(now_s, last_rank=self._periodic)
        return now_s

    def _fire(self, now_s: float, *, last_rank: int) -> None:
        while self._events[0][0] <= now_s and self._events[0][1] <= last_rank:
            heapq.heappop(self._events)[3](now_s)

    def _push(self, at_s: float, rank: int, work: Callable[[float], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at_s, rank, self._pushed, work))

    def _submit(self, arrival: Arrival, now_s: float) -> None:
        self._stirred = True
        request = arrival.request
        outcome = self._scheduler.submit(request, arrival.estimate(request, now_s), now_s, arrival.weight)
        if isinstance(outcome, Refusal):
            self._records[request.id] = record_of_refused(request, outcome)
            return
        cap = arrival.output_tokens if request.max_output_tokens is None else request.max_output_tokens
        self._true_tokens[request.id] = max(1, min(arrival.output_tokens, cap))

    def _send(self, dispatch: Dispatch, now_s: float) -> None:
        request = dispatch.entry.request
        if dispatch.instance not in self._engines:
            raise SchedulingError(f"instance {dispatch.instance!r} has no engine model; there are: {', '.join(self._engines)}")
        sent = SimRequest(request.id, max(1, request.prompt_tokens), self._true_tokens[request.id], request.priority, now_s)
        try:
            self._engines[dispatch.instance].add(sent)
        except EngineError as error:
            ended = self._scheduler.end(request.id, OutcomeKind.FAILED, now_s)
            self._ended(ended, now_s, reason=str(error))
            return
        if request.deadline_s != float("inf"):
            self._sent[request.id] = (dispatch.instance, request.deadline_s)

    def _step(self, name: str, now_s: float) -> None:
        result = self._engines[name].step(now_s)
        self._busy[name] = result
        if result is None:
            return
        self._steps[name] += 1
        self._busy_s[name] += result.end_s - now_s
        self._push(result.end_s, 0, lambda at_s: self._finish_step(name, at_s))

    def _finish_step(self, name: str, now_s: float) -> None:
        result = self._busy[name]
        self._busy[name] = None
        assert result is not None, "only a step under way can end"
        progress = self._scheduler.progress
        for event in result.produced:
            progress(event.id, event.tokens_so_far, now_s)
            if event.finished and event.id in self._true_tokens:
                self._ended(self._scheduler.end(event.id, OutcomeKind.COMPLETED, now_s), now_s)

    def _ended(self, ended: Ended, now_s: float, reason: str = "") -> None:
        self._stirred = True
        request_id = ended.entry.request.id
        self._records[request_id] = record_of(ended, reason)
        self._true_tokens.pop(request_id, None)
        self._sent.pop(request_id, None)
        if self._on_end is not None:
            self._on_end(ended, now_s)

    def _result(self) -> SimulationResult:
        self._scheduler.check_conservation()
        totals: dict[str, EngineTotals] = {}
        for name, model in self._engines.items():
            snapshot = model.snapshot(name, self._now_s)
            totals[name] = EngineTotals(
                steps=self._steps[name],
                busy_s=self._busy_s[name],
                prompt_tokens=snapshot.prompt_tokens_total,
                generation_tokens=snapshot.generation_tokens_total,
                preemptions=snapshot.preemptions_total,
            )
        come = (arrival.request for arrival in self._arrivals[: self._next])
        return SimulationResult(
            records=[self._records.get(request.id) or record_of_live(request) for request in come],
            counts=self._scheduler.counts(),
            engines=totals,
            end_s=self._now_s,
        )


def _bind(run: Control, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> Callable[[float], None]:
    return lambda now_s: run(now_s, scheduler, engines)
