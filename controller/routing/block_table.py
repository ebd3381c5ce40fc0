"""A map of 64-bit numbers in little memory: 16 bytes a slot, where a dict of such integers takes about 150 bytes an entry. Pure."""

from array import array
from collections.abc import Iterator

FIRST_SLOTS = 8
FILL = 0.75
"""Share of slots in use at which a segment doubles."""


class BlockTable:
    """Numbers by number, both from 1 to 2^64 - 1 (0 means none): open addressing with linear probing.

    The slots lie in segments, and a segment grows by itself, so that no single growth takes long. Keys must be spread evenly: hashes are.

    Args:
        segments: How many, a power of two.
    """

    def __init__(self, segments: int) -> None:
        self._last = segments - 1
        self._shift = segments.bit_length() - 1
        self._keys = [array("Q", bytes(8 * FIRST_SLOTS)) for _ in range(segments)]
        self._values = [array("Q", bytes(8 * FIRST_SLOTS)) for _ in range(segments)]
        self._used = [0] * segments
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: int) -> int:
        """The number under `key`, 0 for none."""
        segment = key & self._last
        keys = self._keys[segment]
        last = len(keys) - 1
        place = (key >> self._shift) & last
        while (found := keys[place]) != key:
            if not found:
                return 0
            place = (place + 1) & last
        return self._values[segment][place]

    def put(self, key: int, value: int) -> int:
        """Puts a number under `key`; returns what stood there, 0 for none."""
        segment = key & self._last
        keys, values = self._keys[segment], self._values[segment]
        last = len(keys) - 1
        place = (key >> self._shift) & last
        while found := keys[place]:
            if found == key:
                before = values[place]
                values[place] = value
                return before
            place = (place + 1) & last
        keys[place] = key
        values[place] = value
        self._count += 1
        self._used[segment] += 1
        if self._used[segment] > FILL * len(keys):
            self._grow(segment)
        return 0

    def pop(self, key: int) -> int:
        """Removes `key`; returns what stood there, 0 for none."""
        segment = key & self._last
        keys, values, shift = self._keys[segment], self._values[segment], self._shift
        last = len(keys) - 1
        place = (key >> shift) & last
        while (found := keys[place]) != key:
            if not found:
                return 0
            place = (place + 1) & last
        before = values[place]
        # Those behind it move up, so that every search still ends at the first free slot.
        hole = place
        while found := keys[place := (place + 1) & last]:
            home = (found >> shift) & last
            if (place - home) & last >= (place - hole) & last:
                keys[hole], values[hole] = found, values[place]
                hole = place
        keys[hole] = 0
        self._count -= 1
        self._used[segment] -= 1
        return before

    def values(self) -> Iterator[int]:
        """Every number in the table; it must not change meanwhile."""
        for keys, values in zip(self._keys, self._values, strict=True):
            for place, key in enumerate(keys):
                if key:
                    yield values[place]

    def size_bytes(self) -> int:
        """Memory of the slots."""
        return sum(16 * len(keys) for keys in self._keys)

    def _grow(self, segment: int) -> None:
        old_keys, old_values = self._keys[segment], self._values[segment]
        slots = 2 * len(old_keys)
        self._keys[segment] = keys = array("Q", bytes(8 * slots))
        self._values[segment] = values = array("Q", bytes(8 * slots))
        last, shift = slots - 1, self._shift
        for old, key in enumerate(old_keys):
            if key:
                place = (key >> shift) & last
                while keys[place]:
                    place = (place + 1) & last
                keys[place], values[place] = key, old_values[old]
