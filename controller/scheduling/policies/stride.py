"""Stride scheduling."""

from collections.abc import Mapping
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, PRIORITY, TENANT, WEIGHT, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.flow import Flow
from hmas.controller.scheduling.policy_base.flow_policy import FlowPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.recall import Charge
from hmas.controller.scheduling.policy_base.tickets import tickets_of


@mypyc_attr(allow_interpreted_subclasses=True)
class Stride(FlowPolicy):
    """Tenants share the dispatches in proportion to their tickets, evenly spaced (Waldspurger and Weihl, 1995).

    Each tenant has a pass. Among the tenants with waiting requests the one with the lowest pass goes next, and its pass grows by its
    stride, 1 / tickets. With each dispatch the global pass grows by 1 / the sum of tickets that compete. A tenant that stops waiting keeps
    the distance of its pass to the global one, and comes back at that distance: by leaving and coming back it neither escapes what it had
    in advance nor loses what it was owed, which is one stride at most.

    Tenants share dispatches, not tokens as under `wfq`: no estimate is needed, and long requests cost no more. A tenant's tickets are its
    weight times a factor for the client priority of its next request: ten steps double or halve it. Within a tenant the client priority
    comes first, then arrival.
    """

    name: ClassVar[str] = "stride"
    summary: ClassVar[str] = "tenants share dispatches by tickets (weight and priority), evenly spaced; needs no estimate"
    signals: ClassVar[tuple[Signal, ...]] = (TENANT, WEIGHT, PRIORITY, ARRIVAL)
    starvation: ClassVar[str] = (
        "none: of two tenants that wait, each is within one dispatch of its share of the two; by priority within a tenant"
    )
    shares_tenants: ClassVar[bool] = True
    complexity: ClassVar[str] = "push, pop O(log n + log f), re-key and removal O(1)"
    source: ClassVar[str] = "Waldspurger and Weihl 1995, MIT/LCS/TM-528, sections 2 and 3; H-MAS 3.4.1 and C.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._tickets = 0

    def _cost(self, entry: QueueEntry, output_tokens: float) -> float:  # noqa: ARG002  the base's arguments
        return 1.0

    def _weight(self, entry: QueueEntry) -> float:
        return float(tickets_of(entry))

    def _wake(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        flow.tag = self._clock + (flow.used if flow.turn else 1.0 / tickets_of(entry))
        flow.turn = 1

    def _take(self, flow: Flow, amount: float, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        self._clock += 1.0 / self._tickets
        flow.tag += amount

    def _correct(self, flow: Flow, charge: Charge, more: float, now_s: float) -> None:
        super()._correct(flow, charge, more, now_s)
        flow.used += more

    def _undone(self, flow: Flow, charge: Charge) -> None:  # noqa: ARG002  the base's arguments
        """Takes this draw's part of the global pass back if others were drawn since. Flows that sleep since then keep their distance."""
        if self._clock == charge.clock_before:
            return
        part = charge.clock_after - charge.clock_before
        self._clock -= part
        for asleep in reversed(self.idle.values()):
            if asleep.tag - asleep.used < charge.clock_after - 0.5 * part:
                break
            asleep.used += part

    def _sleep(self, flow: Flow) -> None:
        if flow.name in self._closed:
            self._catch_up(flow)
        flow.used = flow.tag - self._clock

    def _close(self, flow: Flow) -> None:
        """The flow keeps its pass, so that an entry that is put back meanwhile is put back in full."""

    def _open(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        """What the flow had in advance counts, what it was owed does not."""
        self._catch_up(flow)

    def _catch_up(self, flow: Flow) -> None:
        flow.tag = max(flow.tag, self._clock)

    def _stand(self, flow: Flow, first: QueueEntry, seq: int) -> None:
        tickets = tickets_of(first)
        self._tickets += tickets - flow.tickets
        flow.tickets = tickets
        super()._stand(flow, first, seq)

    def _leave(self, flow: Flow) -> None:
        self._tickets -= flow.tickets
        flow.tickets = 0
        super()._leave(flow)
