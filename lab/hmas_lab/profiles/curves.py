"""Interpolation of measured latencies, in logarithms: between two measurements a kernel's time is close to a power of its size."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp, log


class Line:
    """Latency against one size: a power law between measurements, flat below them, growing by a given power above.

    Args:
        points: (size, ms), any order; several of one size count as their mean.
        growth: Power of the size beyond the largest measurement.
    """

    def __init__(self, points: Sequence[tuple[int, float]], growth: float = 1.0) -> None:
        by_size: dict[int, list[float]] = {}
        for size, ms in points:
            by_size.setdefault(size, []).append(ms)
        self.sizes = sorted(by_size)
        self._logs = [log(sum(by_size[size]) / len(by_size[size])) for size in self.sizes]
        self._growth = growth

    @property
    def last(self) -> int:
        """The largest size measured."""
        return self.sizes[-1]

    def log_ms(self, size: float) -> float:
        """Logarithm of the latency in ms."""
        sizes, logs = self.sizes, self._logs
        if size <= sizes[0]:
            return logs[0]
        if size >= sizes[-1]:
            return logs[-1] + self._growth * log(size / sizes[-1])
        right = bisect_left(sizes, size)
        share = log(size / sizes[right - 1]) / log(sizes[right] / sizes[right - 1])
        return logs[right - 1] + share * (logs[right] - logs[right - 1])

    def ms(self, size: float) -> float:
        """The latency."""
        return exp(self.log_ms(size))


class Sheet:
    """Latency against (sequences, tokens each), measured on a grid whose long rows are cut short where memory ends.

    Args:
        rows: For each number of sequences the latencies against tokens.
    """

    def __init__(self, rows: Mapping[int, Line]) -> None:
        self.rows = dict(sorted(rows.items()))

    def covers(self, seqs: float, tokens: float) -> bool:
        """The point lies among measurements, not beyond them."""
        reach = [count for count, line in self.rows.items() if line.last >= tokens]
        return bool(reach) and seqs <= reach[-1]

    def ms(self, seqs: float, tokens: float) -> float:
        """The latency; beyond the rows that reach `tokens` it grows with the number of sequences."""
        reach = [count for count, line in self.rows.items() if line.last >= tokens]
        if not reach:
            furthest = max(line.last for line in self.rows.values())
            reach = [count for count, line in self.rows.items() if line.last == furthest]
        points = [(count, self.rows[count].ms(tokens)) for count in _around(reach, seqs)]
        return Line(points).ms(seqs)


def _around(values: Sequence[int], at: float) -> list[int]:
    """The value(s) of an ascending sequence next to `at`, one on either side where there is one."""
    right = bisect_left(values, at)
    return sorted({values[max(0, right - 1)], values[min(right, len(values) - 1)]})


def between(values: Sequence[int], at: int) -> list[tuple[int, float]]:
    """The value(s) next to `at` with their weights in the logarithm; the weights add up to 1."""
    near = _around(values, at)
    if at in near or len(near) == 1:
        return [(at if at in near else near[0], 1.0)]
    share = log(at / near[0]) / log(near[1] / near[0])
    return [(near[0], 1.0 - share), (near[1], share)]
