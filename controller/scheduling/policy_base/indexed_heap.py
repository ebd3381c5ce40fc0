"""A heap some of whose places no longer count, cleared of them a few at a time."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

Place = tuple[Any, ...]
"""Key, tie, a stamp that no other place of the heap has, what stands there, and what else its owner likes."""
STAMP, WHO = 2, 3
"""Where in a place stand its stamp and what stands there."""

_SLACK = 64
_STEP = 4
"""Places that one call moves while stale ones are swept out; more than the one that it may add, so a sweep ends."""


class IndexedHeap:
    """Places, lowest first. Who leaves or moves only makes its place stale (`drop`).

    The stamps of stale places are kept until they are gone, and they are few: so whether a place counts is asked of a small set.
    Stale places are skipped when they come up. When they outnumber the others they are swept out, a few places with every
    call: the array is set aside and emptied from its end, which leaves the rest of it a heap, into a fresh one, and until
    that is done the lower of the two heads is the lowest. So no single call costs O(n), and there are never more than three
    times as many places as count, plus a constant.

    Attributes:
        moves: Places written or taken since the start, each O(log n); for tests of complexity.
    """

    __slots__ = ("_heap", "_old", "_stale", "moves")

    def __init__(self) -> None:
        self._heap: list[Place] = []
        self._old: list[Place] = []
        self._stale: set[int] = set()
        self.moves = 0

    @property
    def places(self) -> int:
        """Places, stale ones too."""
        return len(self._heap) + len(self._old)

    def standing(self) -> Iterator[Place]:
        """The places that count, in no particular order."""
        stale = self._stale
        for heap in (self._heap, self._old):
            for place in heap:
                if place[STAMP] not in stale:
                    yield place

    def put(self, place: Place) -> None:
        """Adds a place."""
        self.moves += 1
        heapq.heappush(self._heap, place)
        if self._old:
            self._sweep()

    def put_all(self, places: Iterable[Place]) -> None:
        """Adds many: O(n)."""
        self._heap = [*self.standing(), *places]
        self._old = []
        self._stale = set()
        heapq.heapify(self._heap)
        self.moves += len(self._heap)

    def drop(self, stamp: int) -> None:
        """The place of that stamp does not count any more. The lowest is taken out at once: no later call is to find many in its way."""
        self._stale.add(stamp)
        self.lowest()
        if self._old or 2 * len(self._stale) > len(self._heap) + _SLACK:
            self._sweep()

    def replace(self, stamp: int, place: Place) -> None:
        """Moves who stands at that stamp to another place."""
        heap = self._heap
        if heap and heap[0][STAMP] == stamp:
            heapq.heapreplace(heap, place)
            self.moves += 1
        else:
            self.drop(stamp)
            self.put(place)

    def lowest(self) -> list[Place]:
        """The array whose first place is the lowest of all that count; an empty one where none does."""
        heap, old = self._heap, self._old
        if self._stale:
            self._skip(heap)
            self._skip(old)
        return old if old and (not heap or old[0] < heap[0]) else heap

    def _skip(self, heap: list[Place]) -> None:
        stale = self._stale
        while heap and heap[0][STAMP] in stale:
            stale.discard(heapq.heappop(heap)[STAMP])
            self.moves += 1

    def _sweep(self) -> None:
        """One step of sweeping."""
        if not self._old:
            self._old, self._heap = self._heap, []
        old, heap, stale = self._old, self._heap, self._stale
        for _ in range(min(_STEP, len(old))):
            place = old.pop()
            if place[STAMP] in stale:
                stale.discard(place[STAMP])
            else:
                heapq.heappush(heap, place)
                self.moves += 1
