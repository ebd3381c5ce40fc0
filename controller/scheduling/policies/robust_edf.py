"""Earliest deadline first that gives up the costliest requests first while not all can be served in time."""

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.cost_threshold import CostThreshold
from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, OUTPUT_LENGTH, PRIORITY, PROMPT_LENGTH, TARGETS, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.keyed import priority_offset_s
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy

_MOVES = 64
"""Most requests that one pop moves because the threshold has moved."""
COST_THRESHOLD_MOST = 1e9
"""The highest cost at which the threshold may start."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RobustEdf(QueuePolicy):
    """By TTFT deadline among the affordable requests; behind them the others, the cheapest first.

    Deadline order serves all requests in time if that is possible, and is blind if it is not: then the requests with the earliest missed
    deadlines are given up, however much or little work they need. Robust earliest deadline (RED, Buttazzo and Stankovic 1993) keeps the
    order and chooses which requests to reject. Here it chooses by cost, as Moore (1968) does for the fewest late jobs, and a rejected
    request lets all others go first. The affordable cost follows the share of requests that become too late (`CostThreshold`); without an
    overload every request is affordable, and the order is that of `edf`.

    Cost: (prompt tokens + `output_weight` * predicted output tokens) / the tenant's weight. `late_share`: share of arrivals that may be
    affordable and late all the same; the lower, the more is given up beforehand, and the less in vain. `cost_threshold`: where the
    threshold starts, 0 for off.

    Client priority moves the deadline by one second per step.
    """

    name: ClassVar[str] = "robust-edf"
    summary: ClassVar[str] = (
        "earliest deadline first that gives up the costliest first when not all can be in time; the most in time in an overload"
    )
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"output_weight": 2.0, "late_share": 0.01, "cost_threshold": 0.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType(
        {"output_weight": (0.0, 100.0), "late_share": (0.001, 0.5), "cost_threshold": (0.0, COST_THRESHOLD_MOST)}
    )
    signals: ClassVar[tuple[Signal, ...]] = (ARRIVAL, TARGETS, PROMPT_LENGTH, OUTPUT_LENGTH, PRIORITY)
    starvation: ClassVar[str] = "starves: requests above the cost that an overload leaves room for, as long as it lasts; else as edf"
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "Buttazzo and Stankovic 1993 (RED); Moore 1968"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._output_weight = parameters["output_weight"]
        # Where the highest affordable cost is learnt.
        self.threshold = CostThreshold(parameters["late_share"], parameters["cost_threshold"] or math.inf)
        self._in_turn: LazyHeap[QueueEntry] = LazyHeap()
        self._costly: LazyHeap[QueueEntry] = LazyHeap()

    @property
    def cost_threshold(self) -> float:
        """The highest cost that is affordable now, in tokens; infinite if all requests are affordable."""
        return self.threshold.value

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry."""
        self.threshold.arrived(self.cost(entry), now_s)
        self._put(entry)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:  # noqa: ARG002  the contract's argument
        """Adds many entries at once."""
        in_turn: list[tuple[str, float, int, QueueEntry]] = []
        costly: list[tuple[str, float, int, QueueEntry]] = []
        value = self.threshold.value
        waiting = [(self.cost(entry), entry) for entry in entries]
        self.threshold.known_all([cost for cost, _ in waiting])
        for cost, entry in waiting:
            if cost <= value:
                in_turn.append((entry.request.id, _deadline_s(entry), entry.seq, entry))
            else:
                costly.append((entry.request.id, cost, entry.seq, entry))
        self._in_turn.load(in_turn)
        self._costly.load(costly)

    def pop(self, now_s: float) -> QueueEntry | None:  # noqa: ARG002  the contract's argument
        """Takes the next entry out, None if empty."""
        self._sort()
        entry = self._in_turn.pop()
        return self._costly.pop() if entry is None else entry

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the contract's argument
        """Returns a popped entry: deadline, cost and arrival give it its former place."""
        self._put(entry)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        entry = self._in_turn.discard(request_id)
        return self._costly.discard(request_id) if entry is None else entry

    def rekey(self, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the contract's argument
        """Moves the entry to the place of its new estimates."""
        self.discard(entry.request.id)
        self._put(entry)

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the contract's argument
        """Records that a waiting entry has become too late: if it was affordable, the threshold falls."""
        if entry.request.id in self._in_turn:
            self.threshold.on_overdue(self.cost(entry))

    def rank(self, request_id: str) -> int | None:
        """How many entries stand before it under the current threshold, None if it is not here."""
        entry = self._in_turn.get(request_id)
        entry = self._costly.get(request_id) if entry is None else entry
        if entry is None:
            return None
        mine = self._rank(entry)
        return sum(1 for other in self.entries() if self._rank(other) < mine)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        yield from self._in_turn.values()
        yield from self._costly.values()

    def __len__(self) -> int:
        return len(self._in_turn) + len(self._costly)

    def cost(self, entry: QueueEntry) -> float:
        """The cost in tokens that is compared with the threshold."""
        return max(1.0, entry.request.prompt_tokens + self._output_weight * entry.estimates.output_tokens) / entry.weight

    def _rank(self, entry: QueueEntry) -> tuple[bool, float, int]:
        cost = self.cost(entry)
        costly = cost > self.threshold.value
        return (costly, cost if costly else _deadline_s(entry), entry.seq)

    def _put(self, entry: QueueEntry) -> None:
        cost = self.cost(entry)
        if cost <= self.threshold.value:
            self._in_turn.push(entry.request.id, _deadline_s(entry), entry.seq, entry)
        else:
            self._costly.push(entry.request.id, cost, entry.seq, entry)

    def _sort(self) -> None:
        """Moves entries at the head of either heap that the threshold has passed; the others move when they reach the head."""
        value = self.threshold.value
        for _ in range(_MOVES):
            first = self._in_turn.peek()
            if first is None or (cost := self.cost(first[1])) <= value:
                break
            self._in_turn.discard(first[1].request.id)
            self._costly.push(first[1].request.id, cost, first[1].seq, first[1])
        for _ in range(_MOVES):
            cheapest = self._costly.peek()
            if cheapest is None or cheapest[0] > value:
                break
            self._costly.discard(cheapest[1].request.id)
            self._in_turn.push(cheapest[1].request.id, _deadline_s(cheapest[1]), cheapest[1].seq, cheapest[1])


def _deadline_s(entry: QueueEntry) -> float:
    return entry.ttft_deadline_s + priority_offset_s(entry)
