"""Keeps a bounded trace of each request for `hmas explain`, without any text of its prompt."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hmas.controller.control.estimates import Declared
from hmas.controller.control.resolve import Directives
from hmas.controller.core.messages import Completion
from hmas.controller.core.types import Estimates, Request
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Dispatch, Scheduler

BELIEFS_KEPT = 8
"""Most estimates kept of one request: the first, and the last ones."""
TRIES_KEPT = 4
TURNS_KEPT = 512
SAMPLE_S = 1.0
SAMPLES_KEPT = 3600


class QueueSample(NamedTuple):
    """The state of the queue at one moment, for one request: see `Scheduler.glance`."""

    waiting: int
    dispatched: int
    full: int
    down: int


class DispatchAttempt(NamedTuple):
    """One dispatch: time, instance and reason, the hold that it overrode (`Dispatch.relieved`), and the active settings."""

    at_s: float
    instance: str
    reason: str
    policy: str
    parameters: dict[str, float]
    in_flight: int
    relieved: str
    glance: QueueSample
    directives: Directives


class Turn(NamedTuple):
    """A change of the active settings."""

    at_s: float
    policy: str
    directives: Directives


class Sample(NamedTuple):
    """The state of the queue at a regular sample."""

    at_s: float
    policy: str
    waiting: int
    dispatched: int


class RequestTrace:
    """The trace of one request: its estimates, and what was done with it.

    Attributes:
        beliefs: The estimates with their times, in the order in which they were received.
        came: The state of the queue at its arrival.
        previous: The id of an earlier request with the same client id.
    """

    __slots__ = (
        "beliefs",
        "came",
        "client_request_id",
        "completion",
        "declared",
        "entry",
        "failures",
        "policy",
        "previous",
        "request",
        "tries",
    )

    def __init__(
        self, request: Request, client_request_id: str, declared: Declared, estimates: Estimates, *, policy: str, came: QueueSample
    ) -> None:
        self.request = request
        self.client_request_id = client_request_id
        self.declared = declared
        self.beliefs: list[tuple[float, Estimates]] = [(request.arrival_s, estimates)]
        self.policy = policy
        self.came = came
        self.entry: QueueEntry | None = None
        self.tries: list[DispatchAttempt] = []
        self.failures: list[str] = []
        self.completion: Completion | None = None
        self.previous = ""


class RequestTraces:
    """The traces of all requests in progress, and of the last ones that ended.

    Every call is O(1) and takes about a microsecond. Records that concern all requests alike, such as a change of policy or the length of
    the queue each second, are stored once and combined with a trace when it is read.

    Attributes:
        kept, kept_s: How many ended requests are kept, and for how long. With `kept` 0 nothing is stored.
        turns: The active settings with their times. `samples`: the queue each second. The oldest are dropped first.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, directives: Callable[[], Directives], *, kept: int, kept_s: float) -> None:
        self.kept = kept
        self.kept_s = kept_s
        self._scheduler = scheduler
        self._clock = clock
        self._directives = directives
        self._stories: dict[str, RequestTrace] = {}
        self._by_shown: dict[str, RequestTrace] = {}
        self._ended: deque[RequestTrace] = deque()
        self.turns: deque[Turn] = deque(maxlen=TURNS_KEPT)
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)

    def __len__(self) -> int:
        return len(self._stories)

    def find(self, request_id: str) -> RequestTrace | None:
        """The trace with the gateway's id, else the newest with the client's own id; None if there is none (any more)."""
        return self._stories.get(request_id) or self._by_shown.get(request_id)

    def glance(self, model: str) -> QueueSample:
        """The current state of the queue."""
        return QueueSample(*self._scheduler.glance(model))

    def opened(self, request: Request, client_request_id: str, declared: Declared, estimates: Estimates, entry: QueueEntry | None) -> None:
        """Starts a trace; `entry` if the request was admitted to the queue."""
        if not self.kept:
            return
        scheduler = self._scheduler
        came = self.glance(request.model)
        trace = RequestTrace(request, client_request_id, declared, estimates, policy=scheduler.policy, came=came)
        trace.entry = entry
        self._stories[request.id] = trace
        if client_request_id != request.id:
            earlier = self._by_shown.get(client_request_id)
            if earlier is not None:
                trace.previous = earlier.request.id
            self._by_shown[client_request_id] = trace

    def believed(self, request_id: str, estimates: Estimates, now_s: float) -> None:
        """Records new estimates of a request."""
        trace = self._stories.get(request_id)
        if trace is not None:
            beliefs = trace.beliefs
            if len(beliefs) >= BELIEFS_KEPT:
                del beliefs[1]
            beliefs.append((now_s, estimates))

    def sent(self, dispatch: Dispatch, now_s: float) -> None:
        """Records that a request is sent to an instance."""
        trace = self._stories.get(dispatch.entry.request.id)
        if trace is not None and len(trace.tries) < TRIES_KEPT:
            scheduler = self._scheduler
            trace.tries.append(
                DispatchAttempt(
                    now_s,
                    dispatch.instance,
                    dispatch.reason,
                    scheduler.policy,
                    dict(scheduler.parameters),
                    scheduler.in_flight(dispatch.instance),
                    dispatch.relieved,
                    self.glance(trace.request.model),
                    self._directives(),
                )
            )

    def failed(self, request_id: str, reason: str) -> None:
        """Records that the instance has failed the request, which waits again."""
        trace = self._stories.get(request_id)
        if trace is not None and len(trace.failures) < TRIES_KEPT:
            trace.failures.append(reason)

    def closed(self, completion: Completion) -> None:
        """Records the ending of a request; the oldest traces are dropped."""
        trace = self._stories.get(completion.request_id)
        if trace is not None:
            trace.completion = completion
            self._ended.append(trace)
            self._forget(completion.sent_s)

    def turned(self) -> None:
        """Records the active settings after a possible change."""
        if self.kept:
            self.turns.append(Turn(self._clock.now_s(), self._scheduler.policy, self._directives()))

    def tick(self, now_s: float) -> None:
        """Samples the queue once a second, and drops traces that are too old."""
        if self.kept and (not self.samples or now_s - self.samples[-1].at_s >= SAMPLE_S):
            waiting, dispatched, _, _ = self._scheduler.glance("")
            self.samples.append(Sample(now_s, self._scheduler.policy, waiting, dispatched))
            self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        ended = self._ended
        for _ in range(64):
            if not ended or (len(ended) <= self.kept and _ended_s(ended[0]) >= now_s - self.kept_s):
                return
            trace = ended.popleft()
            del self._stories[trace.request.id]
            if self._by_shown.get(trace.client_request_id) is trace:
                del self._by_shown[trace.client_request_id]


def _ended_s(trace: RequestTrace) -> float:
    return trace.completion.sent_s if trace.completion is not None else float("inf")
