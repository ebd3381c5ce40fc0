"""The base of policies that order by one number."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping

from hmas.controller.scheduling.policy_base.declaration import mypyc_attr
from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy

PRIORITY_LIMIT = 100
PRIORITY_STEP_S = 1.0
"""The worth of one step of client priority: a second of deadline, of slack or of service time, depending on the policy.

It is an offset, not a class of its own: priority can delay a request by 100 steps at most, so no request is delayed forever.
"""


def priority_offset_s(entry: QueueEntry) -> float:
    """Seconds to add to a key for the client priority (lower goes first), between -100 and 100."""
    priority = entry.request.priority
    return PRIORITY_STEP_S * max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, priority)) if priority else 0.0


@mypyc_attr(allow_interpreted_subclasses=True)
class KeyedPolicy(QueuePolicy):
    """One heap, lowest `key` first, ties by arrival. The key must not depend on the time: it is computed on push and rekey only."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._heap: LazyHeap[QueueEntry] = LazyHeap()

    @abstractmethod
    def key(self, entry: QueueEntry) -> float:
        """The key of an entry: the lowest goes first."""

    def push(self, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the contract's argument
        """Adds a waiting entry; one that was popped gets its former place by its key and arrival."""
        self._heap.push(entry.request.id, self.key(entry), entry.seq, entry)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:  # noqa: ARG002  the contract's argument
        """Adds many entries at once."""
        key = self.key
        self._heap.load((entry.request.id, key(entry), entry.seq, entry) for entry in entries)

    def pop(self, now_s: float) -> QueueEntry | None:  # noqa: ARG002  the contract's argument
        """Takes the next entry out, None if empty."""
        return self._heap.pop()

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        return self._heap.discard(request_id)

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Moves the entry to the place of its new estimates."""
        self.push(entry, now_s)

    def rank(self, request_id: str) -> int | None:
        """How many entries come before it, None if it is not here."""
        return self._heap.rank(request_id)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        return self._heap.values()

    def __len__(self) -> int:
        return len(self._heap)
