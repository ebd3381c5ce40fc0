"""Completely fair scheduling over sessions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import (
    ARRIVAL,
    PRIORITY,
    SERVED_TOKENS,
    SERVICE_TIME,
    SESSION,
    TENANT,
    WEIGHT,
    Signal,
    mypyc_attr,
)
from hmas.controller.scheduling.policy_base.flow import LEAST_WEIGHT, Flow, by_session, service_ms_of
from hmas.controller.scheduling.policy_base.flow_policy import FlowPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

NICE_STEP = 1.25
NICE_LIMIT = 20


@mypyc_attr(allow_interpreted_subclasses=True)
class Cfs(FlowPolicy):
    """The session that has had the least service goes first, after Linux's completely fair scheduler.

    Each session has a virtual runtime: the service time it was given over its weight. Among the sessions with waiting requests the one with
    the lowest virtual runtime goes next. A session that wakes is placed at the lowest virtual runtime among the waiting sessions, which
    never falls: it neither pays for its pause nor gains from it. A session not seen before starts `debit_ms` behind that, as Linux debits a
    new task: so the lowest virtual runtime rises as new sessions are served, and a stream of new sessions cannot hold back an old one. Nice
    levels are client priorities: each step makes a request weigh 1.25 times less, up to 20 steps, as in Linux. A dispatch is charged the
    predicted T_tot and corrected by the true length at the end.

    Unlike under `wfq`, sessions share, so a tenant gets more service by opening more sessions, and an idle moment does not reset the
    accounts.

    Parameters: `debit_ms`: where a new session starts, in milliseconds of service at weight 1; `by`: 1 for sessions (within their tenant; a
    request without a session counts for its tenant), 0 for tenants.
    """

    name: ClassVar[str] = "cfs"
    summary: ClassVar[str] = "sessions share service time by weight and nice level; keeps an agent's busy session from crowding out chats"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"debit_ms": 1000.0, "by": 1.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"debit_ms": (1.0, 60_000.0), "by": (0.0, 1.0)})
    signals: ClassVar[tuple[Signal, ...]] = (SESSION, TENANT, WEIGHT, PRIORITY, SERVICE_TIME, SERVED_TOKENS, ARRIVAL)
    starvation: ClassVar[str] = (
        "none: of two sessions that wait, service per weight differs by one request of each; new ones start debit_ms behind"
    )
    complexity: ClassVar[str] = "push, pop O(log n + log f), re-key and removal O(1)"
    source: ClassVar[str] = "Molnar 2007, Linux 2.6.23 design document; H-MAS C.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters, sessions=by_session(parameters))
        self._debit_ms = parameters["debit_ms"]

    def _cost(self, entry: QueueEntry, output_tokens: float) -> float:
        return service_ms_of(entry, output_tokens)

    def _weight(self, entry: QueueEntry) -> float:
        nice = max(-NICE_LIMIT, min(NICE_LIMIT, entry.request.priority))
        weight = max(LEAST_WEIGHT, entry.weight)
        return weight / NICE_STEP**nice if nice else weight

    def _wake(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        if flow.turn:
            flow.tag = max(flow.tag, self._clock)
        else:
            flow.turn = 1
            flow.tag = self._clock + self._debit_ms / self._weight(entry)
