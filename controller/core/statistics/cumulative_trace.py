"""How much accumulated over a recent span: the integral of a level, or the growth of a counter. Pure, of bounded memory."""

from array import array
from bisect import bisect_right

READINGS = 8_192
"""Newest readings that a trace covers at least: at ten a second about a quarter of an hour."""
BACK_S = 30.0
"""A reading older than the newest one by this much comes from another clock: the trace begins again with it."""


class CumulativeTrace:
    """An amount that only grows, at the times of its readings.

    A trace follows either a level (`hold`), such as the requests in flight, whose integral it keeps, or a counter (`count`). Between two
    readings the amount grows evenly. A level holds beyond the newest reading; of a counter nothing is known there. A reading that is not
    newer than the last one is ignored.
    """

    def __init__(self) -> None:
        self._times_s = array("d")
        self._amounts = array("d")
        self._level: float | None = None
        self._total = 0.0

    def hold(self, at_s: float, level: float) -> None:
        """Records that the level is `level` from `at_s` on."""
        if self._takes(at_s):
            self._append(at_s, (self._level or 0.0) * (at_s - self._times_s[-1]) if self._times_s else 0.0)
            self._level = level

    def count(self, at_s: float, total: float) -> None:
        """Records a counter's total; a negative one is ignored, and a counter that fell belongs to a new process and began at 0."""
        if total >= 0.0 and self._takes(at_s):
            self._append(at_s, (total - self._total if total >= self._total else total) if self._times_s else 0.0)
            self._total = total

    def grown(self, start_s: float, end_s: float) -> float | None:
        """Returns the growth over a span; None if the span is empty or the trace does not cover it."""
        times_s = self._times_s
        if not times_s or end_s <= start_s or start_s < times_s[0] or (self._level is None and end_s > times_s[-1]):
            return None
        return self._at(end_s) - self._at(start_s)

    def mean(self, start_s: float, end_s: float) -> float | None:
        """Returns the mean level, or the mean rate per second, over a span; None as in `grown`."""
        grown = self.grown(start_s, end_s)
        return None if grown is None else grown / (end_s - start_s)

    def _takes(self, at_s: float) -> bool:
        if self._times_s and at_s <= self._times_s[-1]:
            if at_s > self._times_s[-1] - BACK_S:
                return False
            del self._times_s[:], self._amounts[:]
        return True

    def _append(self, at_s: float, grown: float) -> None:
        self._amounts.append((self._amounts[-1] if self._amounts else 0.0) + grown)
        self._times_s.append(at_s)
        if len(self._times_s) > 2 * READINGS:
            del self._times_s[:READINGS], self._amounts[:READINGS]

    def _at(self, at_s: float) -> float:
        times_s, amounts = self._times_s, self._amounts
        right = bisect_right(times_s, at_s)
        if right == len(times_s):
            return amounts[-1] + (self._level or 0.0) * (at_s - times_s[-1])
        share = (at_s - times_s[right - 1]) / (times_s[right] - times_s[right - 1])
        return amounts[right - 1] + share * (amounts[right] - amounts[right - 1])
