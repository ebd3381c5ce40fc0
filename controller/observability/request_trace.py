"""Keeps a bounded trace of each request for `hmas explain`, without any text of its prompt."""

import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from hmas.controller.observability.observer import (
    Completion,
    Declared,
    Directives,
    Dispatch,
    Estimates,
    Observer,
    QueueEntry,
    Request,
    SystemSnapshot,
)
from hmas.controller.routing.registry import SCORERS
from hmas.controller.scheduling.scheduler import Scheduler

ESTIMATES_KEPT = 8
"""Most estimates kept of one request: the first, and the last ones."""
ATTEMPTS_KEPT = 4
POLICIES_KEPT = 512
SAMPLE_S = 1.0
SAMPLES_KEPT = 3600
FORGET_AT_ONCE = 64


class QueueSample(NamedTuple):
    """The state of the queue at one moment.

    Attributes:
        full, down: They concern one model, see `Scheduler.glance`.
        cost_threshold: The cost above which the policy put requests behind others, 0 for none; None where it was not read.
    """

    at_s: float
    policy: str
    waiting: int
    dispatched: int
    full: int = 0
    down: int = 0
    cost_threshold: float | None = None


class DispatchAttempt(NamedTuple):
    """One dispatch, the hold that it overrode (`Dispatch.relieved`), its instance's scores, and the settings and the queue then.

    Attributes:
        alone_ms: Predicted time of the request on the instance without load, if the router went by it; else None.
    """

    instance: str
    reason: str
    relieved: str
    scores: tuple[tuple[str, float, float], ...]
    parameters: dict[str, float]
    in_flight: int
    queue: QueueSample
    directives: Directives
    alone_ms: float | None = None


@dataclass(slots=True)
class RequestTrace:
    """The trace of one request: its estimates, and what was done with it.

    Attributes:
        estimates: The estimates with their times, in the order in which they were received.
        arrival: The state of the queue at its arrival.
        failures: When and why each attempt failed, in their order; the last attempt has none if it succeeded.
        left: The state of the queue when it was dropped while it waited.
        previous: The id of an earlier request with the same client id.
    """

    request: Request
    client_request_id: str
    declared: Declared
    arrival: QueueSample
    entry: QueueEntry | None = None
    estimates: list[tuple[float, Estimates]] = field(default_factory=list)
    attempts: list[DispatchAttempt] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)
    completion: Completion | None = None
    left: QueueSample | None = None
    previous: str = ""


class RequestTraces(Observer):
    """The traces of all requests in progress, and of the last ones that ended.

    Every call is O(1) and takes about a microsecond. What concerns all requests alike, the policy and the length of the queue each second,
    is stored once and combined with a trace when it is read.

    Attributes:
        kept, kept_s: How many ended requests are kept, and for how long. With `kept` 0 nothing is stored.
        policies: The settings with their times, from each change of the policy. `samples`: the queue each second. The oldest are dropped
            first.
    """

    def __init__(self, scheduler: Scheduler, *, kept: int, kept_s: float) -> None:
        self.kept = kept
        self.kept_s = kept_s
        self._scheduler = scheduler
        self._directives: Directives | None = None
        self._by_id: dict[str, RequestTrace] = {}
        self._by_client_id: dict[str, RequestTrace] = {}
        self._ended: deque[RequestTrace] = deque()
        self.policies: deque[tuple[float, Directives]] = deque(maxlen=POLICIES_KEPT)
        self.samples: deque[QueueSample] = deque(maxlen=SAMPLES_KEPT)

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, request_id: str) -> RequestTrace | None:
        """The trace with the gateway's id, else the newest with the client's own id; None if there is none (any more)."""
        return self._by_id.get(request_id) or self._by_client_id.get(request_id)

    def queue(self, model: str, now_s: float) -> QueueSample:
        """The state of the queue, now."""
        waiting, dispatched, full, down = self._scheduler.glance(model)
        return QueueSample(now_s, self._scheduler.policy, waiting, dispatched, full, down)

    def received(
        self,
        request: Request,
        client_request_id: str,
        declared: Declared,
        trace_headers: Mapping[str, str],
        estimates: Estimates,
    ) -> None:
        """See `Observer.received`."""
        if not self.kept:
            return
        # What it looks up of engines' caches, and its blocks, are of no use later, and large.
        kept = replace(request, cached=None, blocks=()) if request.blocks or request.cached is not None else request
        trace = RequestTrace(kept, client_request_id, declared, self.queue(request.model, request.arrival_s))
        trace.estimates.append((request.arrival_s, estimates))
        self._by_id[request.id] = trace
        if client_request_id != request.id:
            earlier = self._by_client_id.get(client_request_id)
            if earlier is not None:
                trace.previous = earlier.request.id
            self._by_client_id[client_request_id] = trace

    def queued(self, entry: QueueEntry) -> None:
        """See `Observer.queued`."""
        trace = self._by_id.get(entry.request.id)
        if trace is not None:
            trace.entry = entry

    def estimated(self, request: Request, estimates: Estimates, now_s: float) -> None:
        """See `Observer.estimated`."""
        trace = self._by_id.get(request.id)
        if trace is not None:
            if len(trace.estimates) >= ESTIMATES_KEPT:
                del trace.estimates[1]
            trace.estimates.append((now_s, _brief(estimates)))

    def dispatched(self, dispatch: Dispatch, now_s: float) -> None:
        """See `Observer.dispatched`."""
        request = dispatch.entry.request
        trace = self._by_id.get(request.id)
        directives = self._directives
        if trace is not None and directives is not None and len(trace.attempts) < ATTEMPTS_KEPT:
            scheduler = self._scheduler
            trace.attempts.append(
                DispatchAttempt(
                    dispatch.instance,
                    dispatch.reason,
                    dispatch.relieved,
                    dispatch.scores,
                    dict(scheduler.parameters),
                    scheduler.in_flight(dispatch.instance),
                    self.queue(request.model, now_s),
                    directives,
                    _alone_ms(dispatch),
                )
            )

    def retried(self, request: Request, reason: str, now_s: float) -> None:
        """See `Observer.retried`."""
        trace = self._by_id.get(request.id)
        if trace is not None and len(trace.failures) < ATTEMPTS_KEPT:
            trace.failures.append((now_s, reason))

    def ended(self, completion: Completion) -> None:
        """See `Observer.ended`. The oldest traces are dropped."""
        trace = self._by_id.get(completion.request_id)
        if trace is not None:
            trace.completion = completion
            if not trace.attempts:
                trace.left = self.queue(trace.request.model, completion.sent_s)
            entry = trace.entry
            if entry is not None and (entry.estimates.alone or entry.request is not trace.request):
                trace.entry = dataclasses.replace(entry, request=trace.request, estimates=_brief(entry.estimates))
            self._ended.append(trace)
            self._forget(completion.sent_s)

    def control_changed(self, before: Directives | None, after: Directives, now_s: float) -> None:
        """See `Observer.control_changed`."""
        self._directives = after
        if before is None or _policy_of(before) != _policy_of(after):
            self.policies.append((now_s, after))

    def sampled(self, snapshot: SystemSnapshot) -> None:
        """Stores the length of the queue once a second, and drops traces that are too old."""
        now_s = snapshot.sent_s
        if self.kept and (not self.samples or now_s - self.samples[-1].at_s >= SAMPLE_S):
            queued, dispatched, threshold = snapshot.queued, snapshot.dispatched_total, snapshot.cost_threshold
            self.samples.append(QueueSample(now_s, snapshot.policy, queued, dispatched, cost_threshold=threshold))
            self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        ended = self._ended
        for _ in range(FORGET_AT_ONCE):
            if not ended or (len(ended) <= self.kept and _ended_s(ended[0]) >= now_s - self.kept_s):
                return
            trace = ended.popleft()
            del self._by_id[trace.request.id]
            if self._by_client_id.get(trace.client_request_id) is trace:
                del self._by_client_id[trace.client_request_id]


def _brief(estimates: Estimates) -> Estimates:
    """Without the times by instance, which would be most of a trace's memory."""
    return replace(estimates, alone={}) if estimates.alone else estimates


def _alone_ms(dispatch: Dispatch) -> float | None:
    estimates = dispatch.entry.estimates
    predicted = estimates.alone.get(dispatch.instance)
    if predicted is None or not any(getattr(SCORERS.get(name), "uses_times_alone", False) for name, _, _ in dispatch.scores):
        return None
    return predicted[0] + estimates.output_tokens * predicted[1]


def _policy_of(directives: Directives) -> tuple[str, str, Mapping[str, float]]:
    """What makes a change of the policy. Another reason for the same policy is none."""
    policy = directives.policy
    return policy.value, policy.source, directives.parameters


def _ended_s(trace: RequestTrace) -> float:
    return trace.completion.sent_s if trace.completion is not None else float("inf")
