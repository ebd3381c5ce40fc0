"""The common part of disciplines that order by one number."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping

from hmas.controller.scheduling.policy_base.lazy_heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.subclassing import mypyc_attr

PRIORITY_LIMIT = 100
PRIORITY_STEP_S = 1.0
"""What one step of client priority is worth: a second of deadline, of slack or of service time, by the policy.

An offset, not a class of its own: a request can be put off by its priority for 100 steps at most, so none is put off for ever.
"""


def priority_offset_s(entry: QueueEntry) -> float:
    """Seconds to add to a key for the client's priority (lower goes first), between -100 and 100."""
    priority = entry.request.priority
    return PRIORITY_STEP_S * max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, priority)) if priority else 0.0


@mypyc_attr(allow_interpreted_subclasses=True)
class KeyedPolicy(ABC):
    """One heap, lowest `key` first, ties by arrival. The key may not depend on the time: it is computed on push and rekey only."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        self.parameters: Mapping[str, float] = dict(parameters)
        self._heap: LazyHeap[QueueEntry] = LazyHeap()

    @abstractmethod
    def key(self, entry: QueueEntry) -> float:
        """The number that orders: lowest first."""

    def push(self, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the protocol's argument
        """Takes a waiting entry in."""
        self._heap.push(entry.request.id, self.key(entry), entry.seq, entry)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:  # noqa: ARG002  the protocol's argument
        """Takes many in at once."""
        key = self.key
        self._heap.load((entry.request.id, key(entry), entry.seq, entry) for entry in entries)

    def pop(self, now_s: float) -> QueueEntry | None:  # noqa: ARG002  the protocol's argument
        """Takes the next entry out, None when empty."""
        return self._heap.pop()

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns a popped entry: key and arrival give it the place it had."""
        self.push(entry, now_s)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None where it is not here."""
        return self._heap.discard(request_id)

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Gives the entry the place its new estimates ask for."""
        self.push(entry, now_s)

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:  # noqa: B027  the key of the others does not depend on it
        """Nothing to learn from it: an order by key alone gives nobody up."""

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:  # noqa: B027  most keys have nothing to learn from it
        """Nothing to correct: an order by key alone charges nobody."""

    def rank(self, request_id: str) -> int | None:
        """How many stand before it, None where it is not here."""
        return self._heap.rank(request_id)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        return self._heap.values()

    def __len__(self) -> int:
        return len(self._heap)
