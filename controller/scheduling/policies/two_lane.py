"""Two lanes, fast and slow, split on predicted service time."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policies.slack import slack_key_s
from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, OUTPUT_LENGTH, PRIORITY, SERVICE_TIME, TARGETS, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.policy_base.recall import Recall
from hmas.controller.scheduling.policy_base.service_split import FOLLOWS_TRAFFIC, SLOW_QUANTILE, ServiceSplit

FAST, SLOW = "fast", "slow"
_KEEP = 512
"""Pops that can be undone: more than any planning pass looks ahead (`LOOK_AHEAD` and `BARRED_MOST`)."""
_RUNNING_MOST = 10_000
"""Requests in flight whose lane is known. A lane counts none beyond these, so a request that ends unseen holds no place for good."""


class Turn:
    """One pop: its lane, the lane's start tag, and the virtual time before it."""

    __slots__ = ("lane", "start", "virtual")

    def __init__(self, lane: str, start: float, virtual: float) -> None:
        self.lane = lane
        self.start = start
        self.virtual = virtual


@mypyc_attr(allow_interpreted_subclasses=True)
class TwoLane(QueuePolicy):
    """Short requests do not wait behind long ones, and long ones get a share of their own (H-MAS 3.5).

    A request goes to the slow lane if its T_tot is above the threshold, and stays in its lane until it is re-keyed. Within a lane the least
    slack S_r = D_r - V_sys - T_tot (Eq. 5) goes first; V_sys is the same for all waiting requests at any moment, so the order is that of
    D_r - T_tot and the key stays fixed. While both lanes have waiting requests, start-time fair queueing divides the dispatches: a lane's
    start tag grows by 1 / share with each of its dispatches, and the lane with the lower tag goes first. So in any run of dispatches each
    lane gets its share to within one or two, and neither starves. A lane that was empty starts level, with no claim to what it did not use;
    once both lanes are empty, both start level.

    Gates may make the turns longer (the gate period among the hints of C.1): a lane that has the turn keeps it for its share of the period,
    and then the lane with the lower start tag gets it. And a lane may have a concurrency of its own (3.5). Both bind only while requests of
    the other lane wait: no request waits for its lane beside a free slot.

    Parameters: `threshold_ms`: the split on T_tot, 0 to follow the traffic; `slow_quantile`: the quantile of recent T_tot that the split
    follows; `fast_share`: the fast lane's share of dispatches while both lanes wait; `gate_ms`: the gates' period, 0 for no gates;
    `fast_running`, `slow_running`: most requests of a lane of this queue in flight while the other lane waits, 0 for no bound.

    Client priority moves the slack by one second per step.
    """

    name: ClassVar[str] = "two-lane"
    summary: ClassVar[str] = "short and long requests in lanes of their own; ends head-of-line blocking by long ones"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "threshold_ms": FOLLOWS_TRAFFIC,
            "slow_quantile": SLOW_QUANTILE,
            "fast_share": 0.8,
            "gate_ms": 0.0,
            "fast_running": 0.0,
            "slow_running": 0.0,
        }
    )
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType(
        {
            "threshold_ms": (0.0, 3_600_000.0),
            "slow_quantile": (0.05, 0.99),
            "fast_share": (0.05, 0.95),
            "gate_ms": (0.0, 600_000.0),
            "fast_running": (0.0, 100_000.0),
            "slow_running": (0.0, 100_000.0),
        }
    )
    signals: ClassVar[tuple[Signal, ...]] = (SERVICE_TIME, ARRIVAL, TARGETS, OUTPUT_LENGTH, PRIORITY)
    starvation: ClassVar[str] = (
        "no lane below its share of dispatches, to within a gate period, and below its bound in flight; in a lane passed only by less slack"
    )
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "H-MAS 3.5, Eq. 5"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._split = ServiceSplit(parameters["threshold_ms"], parameters["slow_quantile"])
        self._lanes: dict[str, LazyHeap[QueueEntry]] = {FAST: LazyHeap(), SLOW: LazyHeap()}
        self._charge = {FAST: 1.0 / parameters["fast_share"], SLOW: 1.0 / (1.0 - parameters["fast_share"])}
        self._start = {FAST: 0.0, SLOW: 0.0}
        self._virtual = 0.0
        self._recall: Recall[Turn] = Recall(_KEEP)
        self._gate_s = {lane: parameters["gate_ms"] / 1000.0 / charge for lane, charge in self._charge.items()}
        self._gate, self._gate_since_s = FAST, -math.inf
        self._bound = {FAST: parameters["fast_running"], SLOW: parameters["slow_running"]}
        self._bounded = any(self._bound.values())
        self._lane_of: OrderedDict[str, str] = OrderedDict()
        self._running = {FAST: 0, SLOW: 0}

    @property
    def long_split(self) -> tuple[float, float]:
        """The configured split between the lanes."""
        return self._split.parameters

    def push(self, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the contract's argument
        """Adds a waiting entry to the lane of its T_tot."""
        total_ms = entry.estimates.total_ms
        self._split.learn(total_ms)
        lane = SLOW if self._split.is_long(total_ms) else FAST
        self._left(entry.request.id)
        self._enter(lane)
        self._lanes[lane].push(entry.request.id, slack_key_s(entry), entry.seq, entry)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:  # noqa: ARG002  the contract's argument
        """Adds many entries at once; the split is learned from the last 512 before the first is placed."""
        waiting = [(entry, entry.estimates.total_ms) for entry in entries]
        self._split.learn_all([total_ms for _, total_ms in waiting])
        lanes: dict[str, list[tuple[str, float, int, QueueEntry]]] = {FAST: [], SLOW: []}
        for entry, total_ms in waiting:
            lane = SLOW if self._split.is_long(total_ms) else FAST
            lanes[lane].append((entry.request.id, slack_key_s(entry), entry.seq, entry))
        for lane, items in lanes.items():
            if items:
                self._enter(lane)
            self._lanes[lane].load(items)

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry out of the lane that has the turn, None if both are empty."""
        lane = self._next(now_s)
        entry, start = self._lanes[lane].pop(), self._start[lane]
        if entry is None:
            return None
        self._sent(entry.request.id, lane)
        self._virtual = max(self._virtual, start)
        return entry

    def serve(self, request_id: str, now_s: float) -> QueueEntry | None:  # noqa: ARG002  the contract's argument
        """Takes out an entry that is served out of turn: its lane pays for it, and it counts as in flight there. The virtual time stays."""
        for lane, waiting in self._lanes.items():
            entry = waiting.discard(request_id)
            if entry is not None:
                self._sent(request_id, lane)
                return entry
        return None

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns a popped entry to the lane it came from, and takes its turn back."""
        turn = self._recall.take(entry.request.id)
        if turn is None:
            self.push(entry, now_s)
            return
        self._left(entry.request.id)
        lane, charge = turn.lane, self._charge[turn.lane]
        self._lanes[lane].push(entry.request.id, slack_key_s(entry), entry.seq, entry)
        self._start[lane] = turn.start if self._start[lane] == turn.start + charge else self._start[lane] - charge
        if self._virtual == max(turn.virtual, turn.start):
            self._virtual = turn.virtual

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:  # noqa: ARG002  the contract's arguments
        """Frees the place of a request that has ended."""
        self._left(entry.request.id)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        entry = self._lanes[FAST].discard(request_id)
        return self._lanes[SLOW].discard(request_id) if entry is None else entry

    def rank(self, request_id: str) -> int | None:
        """An estimate: the entries before it in its lane, plus what the other lane dispatches meanwhile."""
        for lane, other in ((FAST, SLOW), (SLOW, FAST)):
            rank = self._lanes[lane].rank(request_id)
            if rank is not None:
                return rank + min(len(self._lanes[other]), int(rank * self._charge[lane] / self._charge[other]))
        return None

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        yield from self._lanes[FAST].values()
        yield from self._lanes[SLOW].values()

    def __len__(self) -> int:
        return len(self._lanes[FAST]) + len(self._lanes[SLOW])

    def _next(self, now_s: float) -> str:
        """The lane that has the turn."""
        if not self._lanes[SLOW]:
            return FAST
        if not self._lanes[FAST]:
            return SLOW
        if self._bounded:
            open_lanes = [lane for lane, bound in self._bound.items() if not bound or self._running[lane] < bound]
            if len(open_lanes) == 1:
                return open_lanes[0]
        # A clock that is set back closes the gate, too.
        if not 0.0 <= now_s - self._gate_since_s < self._gate_s[self._gate]:
            self._gate, self._gate_since_s = SLOW if self._start[SLOW] < self._start[FAST] else FAST, now_s
        return self._gate

    def _sent(self, request_id: str, lane: str) -> None:
        """Charges a lane for a dispatch, and counts it there."""
        start = self._start[lane]
        self._recall.note(request_id, Turn(lane, start, self._virtual))
        self._start[lane] = start + self._charge[lane]
        if not self._bounded:
            return
        self._lane_of[request_id] = lane
        self._running[lane] += 1
        if len(self._lane_of) > _RUNNING_MOST:
            self._running[self._lane_of.popitem(last=False)[1]] -= 1

    def _left(self, request_id: str) -> None:
        lane = self._lane_of.pop(request_id, None)
        if lane is not None:
            self._running[lane] -= 1

    def _enter(self, lane: str) -> None:
        """Gives an empty lane its place in the turns before an entry joins it."""
        if self._lanes[lane]:
            return
        if not len(self):
            self._start = dict.fromkeys(self._lanes, 0.0)
            self._virtual = 0.0
        self._start[lane] = max(self._start[lane], self._virtual)
