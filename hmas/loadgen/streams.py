"""Seeded random streams, one per purpose, so that more draws from one stream do not change the others."""

import zlib

import numpy as np


def stream(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """The generator for one purpose (and one item of it, if given). The same arguments give the same draws on every machine."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])


class Draws:
    """Small whole numbers from a generator, drawn in batches, because a single draw of numpy is slow."""

    def __init__(self, rng: np.random.Generator, batch: int = 512) -> None:
        self._rng = rng
        self._batch = batch
        self._left: list[int] = []

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1; `bound` must be far below 2^31, so that the bias of the modulo is negligible."""
        if not self._left:
            self._left = self._rng.integers(0, 2**31, size=self._batch).tolist()
        return self._left.pop() % bound
