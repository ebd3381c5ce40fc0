"""An amount per second over the last seconds, in which older amounts count exponentially less. Pure."""

import math

KNOWN_S = 1.0
"""Least time that a rate since its first amount is taken to be over: after less, nothing is known yet."""


def left_of(since_s: float, now_s: float, memory_s: float) -> float:
    """What is left of 1 after a while."""
    return math.exp(min(0.0, since_s - now_s) / memory_s)


class Rate:
    """An amount per second over the last seconds, in which older amounts count exponentially less.

    `since_first`: the time before the first amount does not count; after a pause of a time constant, the next amount is the first.
    """

    __slots__ = ("_at_s", "_first_s", "_memory_s", "_since_first", "_sum")

    def __init__(self, memory_s: float, *, since_first: bool = False) -> None:
        self._memory_s = memory_s
        self._since_first = since_first
        self._sum = 0.0
        self._at_s = -math.inf
        self._first_s = math.inf

    def add(self, amount: float, now_s: float) -> None:
        """Adds an amount."""
        if self._paused(now_s):
            self._sum, self._first_s = 0.0, now_s
        self._sum = self._sum * left_of(self._at_s, now_s, self._memory_s) + amount
        self._at_s = now_s
        self._first_s = min(self._first_s, now_s)

    def per_s(self, now_s: float) -> float:
        """The amount per second."""
        if not self._sum:
            return 0.0
        counted = 1.0
        if self._since_first:
            counted -= math.exp(-max(KNOWN_S, now_s - self._first_s) / self._memory_s)
        return self._sum * left_of(self._at_s, now_s, self._memory_s) / (self._memory_s * counted)

    def age_s(self, now_s: float) -> float:
        """Seconds since the first amount, below 0 before it and in a pause."""
        return -math.inf if self._paused(now_s) else now_s - self._first_s

    def _paused(self, now_s: float) -> bool:
        return self._since_first and now_s - self._at_s > self._memory_s
