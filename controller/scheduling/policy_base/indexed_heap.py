"""A heap with stale places, which are removed a few at a time."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

Place = tuple[Any, ...]
"""Key, tie, a stamp that is unique in the heap, the value, and anything else that the owner of the heap needs."""
STAMP, WHO = 2, 3
"""Positions of the stamp and the value in a place."""

_SLACK = 64
_STEP = 4
"""Places that one call moves while stale ones are swept out; more than the one that it may add, so a sweep ends."""


class IndexedHeap:
    """A heap of places, lowest first. Removing or moving a value only makes its place stale (`drop`).

    The stamps of stale places are kept in a set until the places are gone. There are few of them, so checking whether a place is live is
    cheap. Stale places are skipped when they reach the top. When they outnumber the live ones they are swept out, a few places with every
    call: the array is set aside and emptied from its end (the rest of it stays a heap) into a new one; until that is done, the lower of the
    two heads is the lowest. So no single call costs O(n), and there are never more than three times as many places as live ones, plus a
    constant.

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
        """Number of places, including stale ones."""
        return len(self._heap) + len(self._old)

    def standing(self) -> Iterator[Place]:
        """The live places, in no particular order."""
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
        """Adds many places: O(n)."""
        self._heap = [*self.standing(), *places]
        self._old = []
        self._stale = set()
        heapq.heapify(self._heap)
        self.moves += len(self._heap)

    def drop(self, stamp: int) -> None:
        """Makes the place of that stamp stale. The lowest place is removed at once, so that no later call has to skip many."""
        self._stale.add(stamp)
        self.lowest()
        if self._old or 2 * len(self._stale) > len(self._heap) + _SLACK:
            self._sweep()

    def replace(self, stamp: int, place: Place) -> None:
        """Moves the value at that stamp to another place."""
        heap = self._heap
        if heap and heap[0][STAMP] == stamp:
            heapq.heapreplace(heap, place)
            self.moves += 1
        else:
            self.drop(stamp)
            self.put(place)

    def lowest(self) -> list[Place]:
        """The array that starts with the lowest live place; an empty array if there is none."""
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
        """Performs one step of sweeping."""
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
