"""A heap with removal and re-keying by id."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_SLACK = 64


class LazyHeap(Generic[T]):
    """Values by id, lowest key first, ties by `tie` (lowest first).

    Removal and re-keying only mark the old place as stale: each place carries a stamp, and the stamp of an id that is live
    is in `_live`. Stale places are skipped when they come up, and swept out when they outnumber the live ones, so there are
    never more than twice the live places plus a constant. Push, pop, discard and re-key are O(log n) amortised.

    Attributes:
        moves: Heap places written or taken since the start, each O(log n); for tests of complexity.
    """

    __slots__ = ("_heap", "_live", "_stamp", "moves")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, str, T]] = []
        self._live: dict[str, tuple[float, int, int, str, T]] = {}
        self._stamp = 0
        self.moves = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._live

    def push(self, item_id: str, key: float, tie: int, value: T) -> None:
        """Puts a value in, or gives the one of that id a new key."""
        self._stamp += 1
        self.moves += 1
        place = (key, tie, self._stamp, item_id, value)
        self._live[item_id] = place
        heapq.heappush(self._heap, place)
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._sweep()

    def load(self, items: Iterable[tuple[str, float, int, T]]) -> None:
        """Puts many in at once: O(n) instead of O(n log n)."""
        for item_id, key, tie, value in items:
            self._stamp += 1
            self._live[item_id] = (key, tie, self._stamp, item_id, value)
        self._sweep()

    def peek(self) -> tuple[float, T] | None:
        """Key and value of the lowest, None when empty."""
        heap, live = self._heap, self._live
        while heap:
            place = heap[0]
            current = live.get(place[3])
            if current is not None and current[2] == place[2]:
                return place[0], place[4]
            heapq.heappop(heap)
            self.moves += 1
        return None

    def pop(self) -> T | None:
        """Takes the lowest out, None when empty."""
        heap, live = self._heap, self._live
        while heap:
            place = heapq.heappop(heap)
            self.moves += 1
            current = live.get(place[3])
            if current is not None and current[2] == place[2]:
                del live[place[3]]
                return place[4]
        return None

    def get(self, item_id: str) -> T | None:
        """The value of that id, None where there is none."""
        place = self._live.get(item_id)
        return None if place is None else place[4]

    def discard(self, item_id: str) -> T | None:
        """Takes a value out by id, None where there is none."""
        place = self._live.pop(item_id, None)
        if place is None:
            return None
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._sweep()
        return place[4]

    def rank(self, item_id: str) -> int | None:
        """How many stand before that id, None where it is not here. O(n)."""
        mine = self._live.get(item_id)
        if mine is None:
            return None
        return sum(1 for place in self._live.values() if place[:3] < mine[:3])

    def values(self) -> Iterator[T]:
        """All values, in no particular order."""
        return (place[4] for place in self._live.values())

    def _sweep(self) -> None:
        self._heap = list(self._live.values())
        heapq.heapify(self._heap)
        self.moves += len(self._heap)
