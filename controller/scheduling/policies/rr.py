"""Round robin."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, PRIORITY, SESSION, TENANT, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.flow import Flow, by_session
from hmas.controller.scheduling.policy_base.flow_policy import FlowPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.recall import Charge


@mypyc_attr(allow_interpreted_subclasses=True)
class RoundRobin(FlowPolicy):
    """Tenants in turn, one request each (Nagle, 1987).

    A tenant that starts to wait joins the end of the round, and so does one that was served and has more waiting. A turn is one request of
    any length, and weights do not count: it needs no estimate, and shares badly if lengths differ. Within a tenant the client priority
    comes first, then arrival.

    Parameter `by`: 0 for tenants, 1 for sessions (within their tenant; a request without a session counts for its tenant).
    """

    name: ClassVar[str] = "rr"
    summary: ClassVar[str] = "tenants in turn, a request each; fair without any estimate where requests are alike"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"by": 0.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"by": (0.0, 1.0)})
    signals: ClassVar[tuple[Signal, ...]] = (TENANT, SESSION, PRIORITY, ARRIVAL)
    starvation: ClassVar[str] = "none: between two turns of a flow that waits each other flow has at most one; by priority within a flow"
    complexity: ClassVar[str] = "push, pop O(log n + log f), re-key and removal O(1)"
    source: ClassVar[str] = "Nagle 1987, RFC 970; H-MAS C.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters, sessions=by_session(parameters))

    def _cost(self, entry: QueueEntry, output_tokens: float) -> float:  # noqa: ARG002  the base's arguments
        return 1.0

    def _weight(self, entry: QueueEntry) -> float:  # noqa: ARG002  the base's argument
        return 1.0

    def _wake(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        self._clock += 1.0
        flow.tag = self._clock

    def _take(self, flow: Flow, amount: float, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        self._clock += 1.0
        flow.tag = self._clock

    def _served(self, charge: Charge, now_s: float) -> None:
        self._take(charge.flow, charge.amount, now_s)

    def _correct(self, flow: Flow, charge: Charge, more: float, now_s: float) -> None:
        """Does nothing: a turn that was followed by another turn of the same flow cannot be given back."""
