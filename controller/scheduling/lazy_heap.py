"""A heap with removal and re-keying by id."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_SLACK = 64
_STEP = 4
"""Places that one call moves while stale ones are swept out; more than the one that it may add, so a sweep ends."""


class LazyHeap(Generic[T]):
    """Values by id, lowest key first, ties by `tie` (lowest first).

    Removal and re-keying only mark the old place as stale: a place counts while it is the one that `_live` has for its id. Stale
    places are skipped when they come up. When they outnumber the live ones they are swept out, a few places with every
    call: the array is set aside and emptied from its end, which leaves the rest of it a heap, into a fresh one, and until
    that is done the lower of the two heads is the lowest. So no single call costs O(n): push, pop, discard and re-key are
    O(log n) amortised, and what one of them costs at most is the skipping of stale places that a pop has laid bare. There
    are never more than three times as many places as values, plus a constant.

    Attributes:
        moves: Heap places written or taken since the start, each O(log n); for tests of complexity.
    """

    __slots__ = ("_heap", "_live", "_old", "_stamp", "moves")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, str, T]] = []
        self._old: list[tuple[float, int, int, str, T]] = []
        self._live: dict[str, tuple[float, int, int, str, T]] = {}
        self._stamp = 0
        self.moves = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._live

    @property
    def places(self) -> int:
        """Heap places, stale ones too."""
        return len(self._heap) + len(self._old)

    def push(self, item_id: str, key: float, tie: int, value: T) -> None:
        """Puts a value in, or gives the one of that id a new key."""
        self._stamp += 1
        self.moves += 1
        place = (key, tie, self._stamp, item_id, value)
        self._live[item_id] = place
        heapq.heappush(self._heap, place)
        if self._old or len(self._heap) > 2 * len(self._live) + _SLACK:
            self._sweep()

    def load(self, items: Iterable[tuple[str, float, int, T]]) -> None:
        """Puts many in at once: O(n) instead of O(n log n), with those that are here already."""
        for item_id, key, tie, value in items:
            self._stamp += 1
            self._live[item_id] = (key, tie, self._stamp, item_id, value)
        self._old = []
        self._heap = list(self._live.values())
        heapq.heapify(self._heap)
        self.moves += len(self._heap)

    def peek(self) -> tuple[float, T] | None:
        """Key and value of the lowest, None when empty."""
        heap = self._lowest()
        return (heap[0][0], heap[0][4]) if heap else None

    def pop(self) -> T | None:
        """Takes the lowest out, None when empty."""
        heap = self._lowest()
        if not heap:
            return None
        place = heapq.heappop(heap)
        self.moves += 1
        del self._live[place[3]]
        return place[4]

    def get(self, item_id: str) -> T | None:
        """The value of that id, None where there is none."""
        place = self._live.get(item_id)
        return None if place is None else place[4]

    def discard(self, item_id: str) -> T | None:
        """Takes a value out by id, None where there is none."""
        place = self._live.pop(item_id, None)
        if place is None:
            return None
        heap = self._heap
        if heap and heap[0] is place:
            # The lowest are taken out one after the other when many become overdue at once: no pop is to find them all in its way.
            heapq.heappop(heap)
            self.moves += 1
        if self._old or len(heap) > 2 * len(self._live) + _SLACK:
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

    def _lowest(self) -> list[tuple[float, int, int, str, T]]:
        """The array whose first place is the lowest of all that count; an empty one where none does."""
        heap, old = self._heap, self._old
        self._skip(heap)
        if not old:
            return heap
        self._skip(old)
        return old if old and (not heap or old[0] < heap[0]) else heap

    def _skip(self, heap: list[tuple[float, int, int, str, T]]) -> None:
        live = self._live
        while heap and live.get(heap[0][3]) is not heap[0]:
            heapq.heappop(heap)
            self.moves += 1

    def _sweep(self) -> None:
        """One step of sweeping stale places out."""
        if not self._old:
            self._old, self._heap = self._heap, []
        old, heap, live = self._old, self._heap, self._live
        for _ in range(min(_STEP, len(old))):
            place = old.pop()
            if live.get(place[3]) is place:
                heapq.heappush(heap, place)
                self.moves += 1
