"""The engine model's own queue of waiting sequences."""

import heapq
from collections.abc import Iterator

from hmas.engines.sim.sequence import Sequence


class EngineQueue:
    """A heap of sequences, lowest key first; a sequence removed by `forget` stays in the heap and is skipped when it comes up."""

    __slots__ = ("_heap", "live")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Sequence]] = []
        self.live = 0

    def push(self, sequence: Sequence) -> None:
        """Adds a sequence."""
        sequence.place = "waiting"
        self.live += 1
        heapq.heappush(self._heap, (sequence.key, sequence))

    def head(self) -> Sequence | None:
        """The first sequence, None if none waits."""
        heap = self._heap
        while heap and heap[0][1].place != "waiting":
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> Sequence:
        """Removes the sequence that `head` has just returned."""
        self.live -= 1
        sequence = heapq.heappop(self._heap)[1]
        sequence.place = "running"
        return sequence

    def forget(self, sequence: Sequence) -> None:
        """Removes a waiting sequence for good."""
        sequence.place = "gone"
        self.live -= 1
        if len(self._heap) > 2 * self.live + 16:
            self._heap = [entry for entry in self._heap if entry[1].place == "waiting"]
            heapq.heapify(self._heap)

    def waiting(self) -> Iterator[Sequence]:
        """All waiting sequences, in no particular order."""
        return (sequence for _, sequence in self._heap if sequence.place == "waiting")

    def __len__(self) -> int:
        return len(self._heap)
