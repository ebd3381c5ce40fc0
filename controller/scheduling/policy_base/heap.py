"""Heaps with removal and re-keying: `IndexedHeap` by the stamp of a place, `LazyHeap` by the id of a value."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Place = tuple[Any, ...]
"""Key, tie, a stamp that is unique in the heap, the value, and anything else that the owner of the heap needs."""
STAMP, WHO = 2, 3
"""Positions of the stamp and the value in a place."""

_SLACK = 64


class IndexedHeap:
    """A heap of places, lowest first. Removing or moving a value only makes its place stale (`drop`).

    The stamps of stale places are kept in a set until the places are gone. Stale places are skipped when they reach the top. When they
    outnumber the live ones the heap is built again without them, in linear time: O(1) for each removal since the last time. So a call is
    O(log n) amortised, and there are never more than twice as many places as live ones, plus a constant.
    """

    __slots__ = ("_heap", "_stale")

    def __init__(self) -> None:
        self._heap: list[Place] = []
        self._stale: set[int] = set()

    def standing(self) -> Iterator[Place]:
        """The live places, in no particular order."""
        stale = self._stale
        return (place for place in self._heap if place[STAMP] not in stale)

    def put(self, place: Place) -> None:
        """Adds a place."""
        heapq.heappush(self._heap, place)

    def put_all(self, places: Iterable[Place]) -> None:
        """Adds many places: O(n)."""
        if self._stale:
            self._heap = list(self.standing())
            self._stale.clear()
        self._heap += places
        heapq.heapify(self._heap)

    def drop(self, stamp: int) -> None:
        """Makes the place of that stamp stale. The lowest place is removed at once, so that no later call has to skip many."""
        self._stale.add(stamp)
        self.lowest()
        if 2 * len(self._stale) > len(self._heap) + _SLACK:
            self.put_all(())

    def replace(self, stamp: int, place: Place) -> None:
        """Moves the value at that stamp to another place."""
        heap = self._heap
        if heap and heap[0][STAMP] == stamp:
            heapq.heapreplace(heap, place)
        else:
            self.drop(stamp)
            self.put(place)

    def lowest(self) -> list[Place]:
        """The array that starts with the lowest live place; an empty array if there is none."""
        heap, stale = self._heap, self._stale
        if stale:
            while heap and heap[0][STAMP] in stale:
                stale.discard(heapq.heappop(heap)[STAMP])
        return heap


class LazyHeap(Generic[T]):
    """Values by id, lowest key first, ties by `tie` (lowest first).

    Push, pop, discard and re-key are O(log n) amortised: removal and re-keying only leave a stale place behind (see `IndexedHeap`).
    """

    __slots__ = ("_heap", "_live", "_stamp")

    def __init__(self) -> None:
        self._heap = IndexedHeap()
        self._live: dict[str, Place] = {}
        self._stamp = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._live

    def push(self, item_id: str, key: float, tie: int, value: T) -> None:
        """Adds a value, or gives the value of that id a new key."""
        self._stamp += 1
        place = (key, tie, self._stamp, value, item_id)
        before = self._live.get(item_id)
        self._live[item_id] = place
        if before is None:
            self._heap.put(place)
        else:
            self._heap.replace(before[STAMP], place)

    def load(self, items: Iterable[tuple[str, float, int, T]]) -> None:
        """Adds many values at once: O(n) instead of O(n log n), where n includes those already here."""
        fresh: dict[str, Place] = {}
        stamp = self._stamp
        for item_id, key, tie, value in items:
            stamp += 1
            fresh[item_id] = (key, tie, stamp, value, item_id)
        self._stamp = stamp
        for item_id in fresh.keys() & self._live.keys():
            self._heap.drop(self._live[item_id][STAMP])
        self._live.update(fresh)
        self._heap.put_all(fresh.values())

    def peek(self) -> tuple[float, T] | None:
        """Key and value of the lowest, None if empty."""
        heap = self._heap.lowest()
        return (heap[0][0], heap[0][WHO]) if heap else None

    def pop(self) -> T | None:
        """Takes the lowest out, None if empty."""
        heap = self._heap.lowest()
        if not heap:
            return None
        place = heapq.heappop(heap)
        del self._live[place[4]]
        value: T = place[WHO]
        return value

    def get(self, item_id: str) -> T | None:
        """The value of that id, None if there is none."""
        place = self._live.get(item_id)
        if place is None:
            return None
        value: T = place[WHO]
        return value

    def discard(self, item_id: str) -> T | None:
        """Takes a value out by id, None if there is none."""
        place = self._live.pop(item_id, None)
        if place is None:
            return None
        self._heap.drop(place[STAMP])
        value: T = place[WHO]
        return value

    def rank(self, item_id: str) -> int | None:
        """How many values come before that id, None if it is not here. O(n)."""
        mine = self._live.get(item_id)
        if mine is None:
            return None
        return sum(1 for place in self._heap.standing() if place < mine)

    def values(self) -> Iterator[T]:
        """All values, in no particular order."""
        return (place[WHO] for place in self._live.values())
