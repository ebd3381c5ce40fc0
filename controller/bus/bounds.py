"""The length bound of a stream: a number of entries, reduced if large entries would take too much memory. Pure."""

from hmas.controller.bus.wire import xadd_head

BYTES_MOST = 64 << 20
"""Approximate limit for all entries of one stream."""
ENTRIES_LEAST = 256
"""Entries that are kept regardless of their size."""
_EVERY = 64
_SHARE = 1.0 / 512.0
"""Weight of one entry in the mean size; small, because telemetry mixes small completions with snapshots that grow with the fleet."""
_NEAR = 0.1


class Bounded:
    """The append command of one stream, with a bound that depends on the size of its entries.

    A snapshot of a hundred instances is a hundred times as large as that of one instance. A fixed number of entries would take a few
    megabytes in one installation and more than the server's memory in another.
    """

    __slots__ = ("_count", "_head", "_key", "_mean", "_most", "bound")

    def __init__(self, key: str, most: int) -> None:
        """Starts with a bound of `most` entries."""
        self._key = key
        self._most = self.bound = most
        self._mean = 0.0
        self._count = 0
        self._head = xadd_head(key, most)

    def head(self, size: int) -> bytes:
        """The start of the command for a payload of `size` bytes. O(1)."""
        self._count += 1
        self._mean += (size - self._mean) * max(1.0 / self._count, _SHARE)
        if self._count % _EVERY == 0:
            bound = max(ENTRIES_LEAST, min(self._most, int(BYTES_MOST / max(1.0, self._mean))))
            if abs(bound - self.bound) > _NEAR * self.bound or bound == self._most != self.bound:
                self.bound = bound
                self._head = xadd_head(self._key, bound)
        return self._head
