"""Seeded random streams, one per purpose, so that drawing more from one leaves the others as they were."""

import zlib

import numpy as np


def stream(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """The generator of one purpose (and, where given, of one item of it). The same arguments give the same draws on every machine."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])


class Draws:
    """Small whole numbers from a generator, fetched in batches: a single draw of numpy's costs more than all that is done with it."""

    def __init__(self, rng: np.random.Generator, batch: int = 512) -> None:
        self._rng = rng
        self._batch = batch
        self._left: list[int] = []

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1; `bound` far below 2^31, so the modulo's bias does not show."""
        if not self._left:
            self._left = self._rng.integers(0, 2**31, size=self._batch).tolist()
        return self._left.pop() % bound
