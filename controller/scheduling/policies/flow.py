"""A flow: those of one tenant or session that wait, and the account of what it has had."""

import heapq
from collections.abc import Mapping

from controller.scheduling.policies.keyed import PRIORITY_LIMIT
from controller.scheduling.queue_entry import QueueEntry

LEAST_WEIGHT = 1e-6
_SLACK = 64

State = tuple[float, float, int]
"""An account: tag, used, turn."""
Place = tuple[float, int, int, str, QueueEntry]
"""Where an entry stands in its flow: priority, arrival number, a stamp, its id, itself."""


class Flow:
    """One tenant or session: a heap of its waiting entries, and its account.

    The client's priority orders within a flow, which harms nobody outside it, then arrival. A place in the heap counts while
    `live`, the table of all waiting entries of the policy, holds it under its id; the others are stale, are skipped when
    they come up, and are swept out when they outnumber the rest.

    Attributes:
        name: Its own.
        size: How many wait.
        tag: Where it stands among the flows: the lowest goes first.
        used: Service taken that the tag does not show, as the discipline counts it.
        turn: Breaks ties of tags, or says that the flow was here before, as the discipline has it.
        tickets: Its claim while it stands in the turns, for disciplines that add claims up; 0 when it does not.
        stamp: Of its place in the turns; 0 when it has none.
        stood: Tag and tie of that place.
    """

    __slots__ = ("_heap", "name", "size", "stamp", "stood", "tag", "tickets", "turn", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.tag = 0.0
        self.used = 0.0
        self.turn = 0
        self.tickets = 0
        self.stamp = 0
        self.stood = (0.0, 0)
        self._heap: list[Place] = []

    def state(self) -> State:
        """Its account as it stands."""
        return self.tag, self.used, self.turn

    def push(self, place: Place) -> None:
        """Takes one in."""
        self.size += 1
        heapq.heappush(self._heap, place)

    def load(self, places: list[Place]) -> None:
        """Takes many in: O(n)."""
        self.size += len(places)
        self._heap += places
        heapq.heapify(self._heap)

    def pop(self, live: Mapping[str, Place]) -> QueueEntry:
        """Takes the next out; there must be one."""
        heap = self._heap
        place = heapq.heappop(heap)
        while live.get(place[3]) is not place:
            place = heapq.heappop(heap)
        self.size -= 1
        return place[4]

    def first(self, live: Mapping[str, Place]) -> Place | None:
        """The place of the next, None when empty."""
        heap = self._heap
        while heap:
            place = heap[0]
            if live.get(place[3]) is place:
                return place
            heapq.heappop(heap)
        return None

    def dropped(self, live: Mapping[str, Place]) -> None:
        """One of its entries has been taken out of `live`."""
        self.size -= 1
        if len(self._heap) > 2 * self.size + _SLACK:
            self._heap = [place for place in self._heap if live.get(place[3]) is place]
            heapq.heapify(self._heap)

    def entries(self, live: Mapping[str, Place]) -> list[QueueEntry]:
        """All its waiting entries, in no particular order."""
        return [place[4] for place in self._heap if live.get(place[3]) is place]

    def rank(self, place: Place, live: Mapping[str, Place]) -> int:
        """How many of the flow stand before that place. O(n)."""
        return sum(1 for other in self._heap if other[:3] < place[:3] and live.get(other[3]) is other)


def flow_name(entry: QueueEntry, *, sessions: bool) -> str:
    """The tenant; or its session, where sessions count and the request names one."""
    request = entry.request
    return f"{request.tenant}\0{request.session}" if sessions and request.session else request.tenant


def by_session(hints: Mapping[str, float]) -> bool:
    """What the hint `by` of several disciplines says: 0 tenants, 1 sessions."""
    return hints["by"] >= 0.5


def order_within(entry: QueueEntry) -> float:
    """The order within a flow: the client's priority, lower first."""
    priority = entry.request.priority
    return float(max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, priority))) if priority else 0.0


def tokens_of(entry: QueueEntry, output_tokens: float) -> float:
    """Prompt and output tokens, 1 or more."""
    return max(1.0, entry.request.prompt_tokens + output_tokens)


def service_ms_of(entry: QueueEntry, output_tokens: float) -> float:
    """T_tot at that length, milliseconds, 1 or more (H-MAS 3.2)."""
    return max(1.0, entry.estimates.ttft_ms + entry.estimates.tpot_ms * output_tokens)
