"""Tickets: a flow's claim under proportional-share policies, and draws among the holders of tickets."""

from typing import Generic, TypeVar

from hmas.controller.scheduling.policy_base.keyed import PRIORITY_LIMIT
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

T = TypeVar("T")

PER_WEIGHT = 1000
"""Tickets of weight 1 at priority 0. They are whole numbers, which add up exactly in any order."""
DOUBLING = 10.0
"""Steps of client priority that halve a claim."""
_LIMIT = 10**9


def tickets_of(entry: QueueEntry) -> int:
    """The claim of a tenant with this as its next entry: its weight, doubled for every ten steps of better priority. At least 1."""
    claim = PER_WEIGHT * entry.weight
    priority = entry.request.priority
    if priority:
        claim *= 2.0 ** (-max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, priority)) / DOUBLING)
    return 1 if claim < 1.5 else _LIMIT if claim > _LIMIT else int(claim + 0.5)


class TicketTree(Generic[T]):
    """Holders with whole numbers of tickets, in a binary indexed tree of partial sums (Fenwick, 1994).

    A holder keeps its slot until it is removed; freed slots are reused, the last freed first. Setting, removing and drawing are O(log f)
    with f slots.

    Attributes:
        total: Sum of all tickets.
    """

    __slots__ = ("_free", "_held", "_holders", "_slot_of", "_sums", "total")

    def __init__(self) -> None:
        self._sums = [0, 0]
        self._held = [0]
        self._holders: list[T | None] = [None]
        self._slot_of: dict[str, int] = {}
        self._free = [0]
        self.total = 0

    def set(self, name: str, tickets: int, holder: T) -> None:
        """Sets the number of tickets of a holder, 1 or more."""
        slot = self._slot_of.get(name)
        if slot is None:
            if not self._free:
                self._grow()
            slot = self._slot_of[name] = self._free.pop()
        self._holders[slot] = holder
        self._add(slot, tickets - self._held[slot])

    def remove(self, name: str) -> None:
        """Removes a holder, if it is present."""
        slot = self._slot_of.pop(name, None)
        if slot is not None:
            self._add(slot, -self._held[slot])
            self._holders[slot] = None
            self._free.append(slot)

    def holder(self, ticket: int) -> T | None:
        """The holder of ticket number `ticket`, from 0 to `total` - 1, slots in order."""
        sums, size = self._sums, len(self._held)
        before = 0
        step = size
        while step:
            if before + step <= size and sums[before + step] <= ticket:
                before += step
                ticket -= sums[before]
            step >>= 1
        return self._holders[before]

    def _add(self, slot: int, more: int) -> None:
        self._held[slot] += more
        self.total += more
        sums, size = self._sums, len(self._held)
        position = slot + 1
        while position <= size:
            sums[position] += more
            position += position & -position

    def _grow(self) -> None:
        """Doubles the number of slots, which is always a power of two: O(f), and rare."""
        size = len(self._held)
        self._free = list(range(2 * size - 1, size - 1, -1))
        self._held += [0] * size
        self._holders += [None] * size
        self._sums += [0] * size
        self._sums[2 * size] = self.total
