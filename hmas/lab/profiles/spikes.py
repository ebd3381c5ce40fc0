"""Single measurements that something else on the machine slowed down, found by what all their neighbours say."""

from collections.abc import Iterator, Mapping
from math import exp, log
from statistics import median

Point = tuple[int, int, int]

SPIKE = 1.6
"""A GEMM this much slower than its neighbours imply is not believed; tiles that a shape fills badly cost less than that."""


def without_spikes(ms: Mapping[Point, float]) -> tuple[dict[Point, float], int]:
    """Measurements on a grid, those that stand out replaced by what their neighbours imply.

    Along each axis a point's two neighbours imply its time by a power law between them. The median over the axes (the larger of two) is
    what the point should take.

    Args:
        ms: Latency by (m, n, k); some points of the grid may be missing.

    Returns:
        The latencies, and how many were replaced.
    """
    axes = [sorted({point[axis] for point in ms}) for axis in range(3)]
    places = [{value: place for place, value in enumerate(values)} for values in axes]
    logs = {point: log(value) for point, value in ms.items()}

    def implied(point: Point) -> Iterator[float]:
        for axis, values in enumerate(axes):
            place = places[axis][point[axis]]
            if 0 < place < len(values) - 1:
                below, above = ((*point[:axis], values[place + step], *point[axis + 1 :]) for step in (-1, 1))
                if below in logs and above in logs:
                    share = log(point[axis] / values[place - 1]) / log(values[place + 1] / values[place - 1])
                    yield logs[below] + share * (logs[above] - logs[below])

    result = dict(ms)
    for point, value in logs.items():
        expected = sorted(implied(point))
        if len(expected) >= 2:
            should = expected[-1] if len(expected) == 2 else median(expected)
            if value > should + log(SPIKE):
                result[point] = exp(should)
    return result, sum(result[point] != ms[point] for point in ms)
