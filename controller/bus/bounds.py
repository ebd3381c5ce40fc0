"""How long a stream may get: so many entries, and no more of them than a server's memory has room for. Pure."""

from hmas.controller.bus.wire import xadd_head

BYTES_MOST = 64 << 20
"""Of one stream's entries, as far as their size tells."""
ENTRIES_LEAST = 256
"""Entries that are kept however large they are."""
_EVERY = 64
_SHARE = 1.0 / 512.0
"""How much one entry counts for the mean size: telemetry mixes small completions with snapshots that grow with the fleet."""
_NEAR = 0.1


class Bounded:
    """One stream's command, with a bound that follows the size of what is sent.

    A snapshot of a hundred instances is a hundred times one of one: a bound in entries alone is some megabytes in one place and more than
    the server has in another.
    """

    __slots__ = ("_count", "_head", "_key", "_mean", "_most", "bound")

    def __init__(self, key: str, most: int) -> None:
        """Begins at `most` entries."""
        self._key = key
        self._most = self.bound = most
        self._mean = 0.0
        self._count = 0
        self._head = xadd_head(key, most)

    def head(self, size: int) -> bytes:
        """What stands before a payload of so many bytes. O(1)."""
        self._count += 1
        self._mean += (size - self._mean) * max(1.0 / self._count, _SHARE)
        if self._count % _EVERY == 0:
            bound = max(ENTRIES_LEAST, min(self._most, int(BYTES_MOST / max(1.0, self._mean))))
            if abs(bound - self.bound) > _NEAR * self.bound or bound == self._most != self.bound:
                self.bound = bound
                self._head = xadd_head(self._key, bound)
        return self._head
