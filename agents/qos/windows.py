"""Bounded sliding windows over telemetry, and figures computed from them. Pure."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")


class TimeWindow(Generic[T]):
    """Items of the last `span_s` seconds in order of their time, even if they arrive late; at `limit` the oldest are dropped."""

    def __init__(self, span_s: float, limit: int) -> None:
        self._span_s = span_s
        self._limit = limit
        self._rows: list[tuple[float, int, T]] = []
        self._tie = count()

    def add(self, at_s: float, item: T) -> None:
        """Adds one item at its place in time."""
        # The running number decides between equal times, so items themselves are never compared.
        insort(self._rows, (at_s, next(self._tie), item), key=itemgetter(0, 1))
        del self._rows[: -self._limit]

    def prune(self, now_s: float) -> None:
        """Removes items older than the span."""
        del self._rows[: bisect_left(self._rows, now_s - self._span_s, key=itemgetter(0))]

    def all(self) -> list[T]:
        """Returns all items, oldest first."""
        return [row[2] for row in self._rows]

    def newest_first(self) -> Iterator[T]:
        """Returns all items, newest first."""
        return (row[2] for row in reversed(self._rows))

    def clear(self) -> None:
        """Forgets everything."""
        self._rows.clear()

    def __len__(self) -> int:
        return len(self._rows)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the least-squares slope of (time in s, value), per second; 0 with fewer than two distinct times."""
    if len(points) < 2:
        return 0.0
    # Times relative to the first point, because seconds since the epoch would lose the differences to rounding.
    first_t, first_v = points[0]
    sum_t = sum_v = sum_tt = sum_tv = 0.0
    for t, v in points:
        past, more = t - first_t, v - first_v
        sum_t += past
        sum_v += more
        sum_tt += past * past
        sum_tv += past * more
    spread = sum_tt - sum_t * sum_t / len(points)
    return (sum_tv - sum_t * sum_v / len(points)) / spread if spread > 1e-12 else 0.0


def variation(values: Sequence[float]) -> float:
    """Returns the coefficient of variation (standard deviation over mean); 0 with fewer than two values or a mean of 0."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    if mean <= 0.0:
        return 0.0
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return float(variance**0.5 / mean)
