"""The one interface to everything that listens to a gateway, and the fan-out that calls the listeners.

An exporter derives from `Observer` and needs to import nothing else: the types of its arguments stand here, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec

from hmas.controller.control.estimates import Declared
from hmas.controller.control.resolve import Directives
from hmas.controller.core.messages import Completion, Event, MetaDecision, Severity, SystemSnapshot
from hmas.controller.core.types import Estimates, Request
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.policy_base.declaration import mypyc_attr
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.results import Dispatch

__all__ = [
    "Completion",
    "Declared",
    "Directives",
    "Dispatch",
    "Estimates",
    "Event",
    "MetaDecision",
    "Observer",
    "Observers",
    "QueueEntry",
    "Request",
    "SystemSnapshot",
]


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer:
    """Listens to a gateway. Every method does nothing: an observer overrides those that it needs.

    All calls come from the gateway's event loop, in the order of the events, between two steps of the request that they are about. So a
    method returns within microseconds, never waits, and changes nothing that it is given. Times are seconds since the epoch.
    """

    def received(
        self,
        request: Request,
        client_request_id: str,
        declared: Declared,
        trace_headers: Mapping[str, str],
        estimates: Estimates,
    ) -> None:
        """A valid request has arrived. `queued` follows, or `ended` if it is refused.

        The client sees the id that it sent itself, or the gateway's; `trace_headers` are its valid `traceparent` and `tracestate`.
        """

    def queued(self, entry: QueueEntry) -> None:
        """A request has its place in the queue. `entry.held` counts, as it waits, what it waits for."""

    def estimated(self, request: Request, estimates: Estimates, now_s: float) -> None:
        """An agent's answer has changed the estimates of a request."""

    def dispatched(self, dispatch: Dispatch, now_s: float) -> None:
        """A request leaves the queue for an instance. `dispatch.entry.held`: what it waited for."""

    def first_token(self, request: Request, instance: str, overhead_s: float, now_s: float) -> None:
        """The first bytes of an answer go to the client.

        An answer in one piece goes out when its end is recorded, so for it this follows `ended`. `overhead_s`: seconds that the gateway
        itself took.
        """

    def engine_failed(self, request: Request, instance: str, reason: str, now_s: float) -> None:
        """An instance has failed a request. `retried` or `ended` follows."""

    def retried(self, request: Request, reason: str, now_s: float) -> None:
        """A request waits again after its instance has failed."""

    def ended(self, completion: Completion) -> None:
        """A request has ended, once for each `received`."""

    def refused(self, code: str) -> None:
        """A client got the error `code` in place of an answer, for a request of any kind."""

    def unread(self) -> None:
        """The connection of a client that took too little of its answer was closed."""

    def passed_through(self, status: int, took_s: float) -> None:
        """A request that is not queued (such as embeddings) was answered with this status."""

    def passed_failed(self, instance: str) -> None:
        """An instance has failed a request that is not queued (such as embeddings)."""

    def passed_again(self) -> None:
        """A request that is not queued (embeddings) is sent a second time, because its first instance has failed."""

    def agent_rejected(self, agent: str, reason: str) -> None:
        """A message of an agent was out of range and was ignored."""

    def control_changed(self, before: Directives | None, after: Directives, now_s: float) -> None:
        """Policy, parameters, windows or limits have changed. `before` is None once, when the gateway starts."""

    def noted(self, event: Event) -> None:
        """Something that operators read in the event log has happened."""

    def decided(self, decision: MetaDecision) -> None:
        """Meta has decided. Repeats of a decision, which meta sends as a sign of life, are left out."""

    def sampled(self, snapshot: SystemSnapshot) -> None:
        """The state of queue and instances, once per tick (`scheduler.tick_s`)."""

    async def close(self) -> None:
        """The gateway has ended its last request: send what is left. After two seconds this is cancelled."""


P = ParamSpec("P")


def _passed_on(event: Callable[Concatenate[Observer, P], None], observers: Sequence[Observer]) -> Callable[P, None]:
    """Passes an event to the observers that override its method: most observers need few events."""
    name = event.__name__
    listening: list[Callable[P, None]] = [getattr(one, name) for one in observers if getattr(type(one), name) is not event]

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        for one in listening:
            one(*args, **kwargs)

    return call


class Observers:
    """Passes every event of `Observer` to all observers that listen to it, in the order of the observers."""

    def __init__(self, observers: Sequence[Observer], clock: Clock) -> None:
        self._clock = clock
        self.received = _passed_on(Observer.received, observers)
        self.queued = _passed_on(Observer.queued, observers)
        self.estimated = _passed_on(Observer.estimated, observers)
        self.dispatched = _passed_on(Observer.dispatched, observers)
        self.first_token = _passed_on(Observer.first_token, observers)
        self.engine_failed = _passed_on(Observer.engine_failed, observers)
        self.retried = _passed_on(Observer.retried, observers)
        self.ended = _passed_on(Observer.ended, observers)
        self.refused = _passed_on(Observer.refused, observers)
        self.unread = _passed_on(Observer.unread, observers)
        self.passed_through = _passed_on(Observer.passed_through, observers)
        self.passed_failed = _passed_on(Observer.passed_failed, observers)
        self.passed_again = _passed_on(Observer.passed_again, observers)
        self.agent_rejected = _passed_on(Observer.agent_rejected, observers)
        self.control_changed = _passed_on(Observer.control_changed, observers)
        self.noted = _passed_on(Observer.noted, observers)
        self.decided = _passed_on(Observer.decided, observers)
        self.sampled = _passed_on(Observer.sampled, observers)

    def note(
        self,
        kind: str,
        subject: str,
        *,
        before: str = "",
        after: str = "",
        reason: str = "",
        severity: Severity = "info",
        decision_id: str = "",
        source: str = "gateway",
    ) -> None:
        """Notes an event of now. `source`: what set it, by default the gateway itself."""
        self.noted(
            Event(
                sent_s=self._clock.now_s(),
                source=source,
                kind=kind,
                subject=subject,
                before=before,
                after=after,
                reason=reason,
                severity=severity,
                decision_id=decision_id,
            )
        )
