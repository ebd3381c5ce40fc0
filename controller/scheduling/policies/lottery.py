"""Lottery scheduling."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, PRIORITY, TENANT, WEIGHT, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.flow import Flow
from hmas.controller.scheduling.policy_base.flow_policy import FlowPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.recall import Charge
from hmas.controller.scheduling.policy_base.tickets import TicketTree, tickets_of

_MASK = (1 << 64) - 1


def drawn(seed: int, number: int) -> int:
    """The `number`-th draw: 64 pseudo-random bits that depend only on seed and number (Steele et al., 2014, SplitMix64)."""
    bits = (seed * 0xD1342543DE82EF95 + number * 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


@mypyc_attr(allow_interpreted_subclasses=True)
class Lottery(FlowPolicy):
    """Draws each dispatch among the waiting tenants by their tickets (Waldspurger and Weihl, 1994).

    Shares of dispatches follow the tickets only in the mean, and deviate by the square root of the number of draws; `stride` gives the same
    shares evenly. The advantage of a draw is that there is no account to keep: tenants may come, go and change their weight without any
    rule for it, and no client can time its requests to the order. Draws come from the policy's own seeded generator: the same calls give
    the same order. If the drawn tenant's request cannot be dispatched while one drawn later can, the tenant keeps its win and goes first
    the next time. The clock counts the draws.

    A tenant's tickets are its weight times a factor for the client priority of its next request: ten steps double or halve it. Within a
    tenant the client priority comes first, then arrival.

    Parameter `seed`: the seed of the generator.
    """

    name: ClassVar[str] = "lottery"
    summary: ClassVar[str] = "each dispatch is drawn among tenants by tickets (weight and priority); fair in the mean, hard to game"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"seed": 0.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"seed": (0.0, 4_294_967_295.0)})
    signals: ClassVar[tuple[Signal, ...]] = (TENANT, WEIGHT, PRIORITY, ARRIVAL)
    starvation: ClassVar[str] = (
        "none, in probability: with share p a tenant is passed in k draws with (1 - p)^k; by priority within a tenant"
    )
    shares_tenants: ClassVar[bool] = True
    complexity: ClassVar[str] = "push, pop O(log n + log f), re-key O(1), removal O(log f)"
    source: ClassVar[str] = "Waldspurger and Weihl, OSDI 1994, section 2; H-MAS C.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._seed = int(parameters["seed"])
        self._tree: TicketTree[Flow] = TicketTree()
        self._won: list[Flow] = []

    def _cost(self, entry: QueueEntry, output_tokens: float) -> float:  # noqa: ARG002  the base's arguments
        return 1.0

    def _weight(self, entry: QueueEntry) -> float:  # noqa: ARG002  the base's argument
        return 1.0

    def _claim(self, entry: QueueEntry) -> float:
        return float(tickets_of(entry))

    def _wake(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:
        """Does nothing: a lottery keeps no account."""

    def _take(self, flow: Flow, amount: float, now_s: float) -> None:
        """Does nothing: a lottery keeps no account."""

    def _correct(self, flow: Flow, charge: Charge, more: float, now_s: float) -> None:
        """Does nothing: a lottery keeps no account."""

    def _undone(self, flow: Flow, charge: Charge) -> None:
        """Takes the draw back. A win is kept if it came without a draw, or if others have been drawn since."""
        if charge.clock_before == charge.clock_after or self._clock != charge.clock_before:
            self._won.append(flow)

    def _next(self) -> Flow | None:
        while self._won:
            flow = self._won.pop()
            if flow.size and self._knows(flow):
                return flow
        if not self._tree.total:
            return None
        self._clock += 1.0
        return self._tree.holder(drawn(self._seed, int(self._clock)) * self._tree.total >> 64)

    def _stand(self, flow: Flow, first: QueueEntry, seq: int) -> None:  # noqa: ARG002  the base's arguments
        tickets = tickets_of(first)
        if tickets != flow.tickets:
            flow.tickets = tickets
            self._tree.set(flow.name, tickets, flow)

    def _leave(self, flow: Flow) -> None:
        flow.tickets = 0
        self._tree.remove(flow.name)
        if self._won:
            self._won = [one for one in self._won if one is not flow]
