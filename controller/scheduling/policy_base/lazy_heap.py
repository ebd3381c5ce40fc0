"""A heap with removal and re-keying by id."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from hmas.controller.scheduling.policy_base.indexed_heap import STAMP, WHO, IndexedHeap, Place
from hmas.controller.scheduling.policy_base.sharded_dict import ShardedDict

T = TypeVar("T")


class LazyHeap(Generic[T]):
    """Values by id, lowest key first, ties by `tie` (lowest first).

    Removal and re-keying only leave a stale place behind (see `IndexedHeap`). Push, pop, discard and re-key are O(log n) amortised, and no
    single call costs O(n): at most it skips the stale places that a pop has exposed.
    """

    __slots__ = ("_heap", "_live", "_stamp")

    def __init__(self) -> None:
        self._heap = IndexedHeap()
        self._live: ShardedDict[Place] = ShardedDict()
        self._stamp = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._live

    @property
    def places(self) -> int:
        """Number of heap places, including stale ones."""
        return self._heap.places

    @property
    def moves(self) -> int:
        """Heap places written or taken since the start, each O(log n); for tests of complexity."""
        return self._heap.moves

    def push(self, item_id: str, key: float, tie: int, value: T) -> None:
        """Adds a value, or gives the value of that id a new key."""
        self._stamp += 1
        place = (key, tie, self._stamp, value, item_id)
        before = self._live.put(item_id, place)
        if before is None:
            self._heap.put(place)
        else:
            self._heap.replace(before[STAMP], place)

    def load(self, items: Iterable[tuple[str, float, int, T]]) -> None:
        """Adds many values at once: O(n) instead of O(n log n), where n includes those already here."""
        fresh: dict[str, Place] = {}
        for item_id, key, tie, value in items:
            self._stamp += 1
            fresh[item_id] = place = (key, tie, self._stamp, value, item_id)
            before = self._live.put(item_id, place)
            if before is not None:
                self._heap.drop(before[STAMP])
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
        self._heap.moves += 1
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
        place = self._live.take(item_id)
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
