"""Single measurements that something else on the machine slowed down, found by what all their neighbours say."""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median

Point = tuple[int, ...]

SPIKE = 1.6
"""A kernel this much slower than its neighbours imply is not believed; tiles that a shape fills badly cost less than that."""

SHELF = 0.8
"""A true step in a kernel's time, as where data outgrows the cache, is below this share of what the next larger ones take."""


def without_spikes(ms: Mapping[Point, float]) -> tuple[dict[Point, float], int]:
    """Measurements on a grid, those that stand out replaced by what their neighbours imply.

    Along each axis a point's two neighbours imply its time by a power law between them. The median over the axes (of two the larger) is
    what the point should take. Points with neighbours along one axis only are left as they are.

    Args:
        ms: Latency by sizes, such as (m, n, k); some points of the grid may be missing.

    Returns:
        The latencies, and how many were replaced.
    """
    axes = [sorted(set(values)) for values in zip(*ms, strict=True)]
    places = [{value: place for place, value in enumerate(values)} for values in axes]
    logs = {point: log(value) for point, value in ms.items()}
    result = dict(ms)
    for point, value in logs.items():
        around = _neighbours(point, logs, axes, places)
        if len(around) < 2:
            continue
        expected = sorted(below + share * (above - below) for below, above, share in around)
        should = expected[-1] if len(expected) == 2 else median(expected)
        if value > should + log(SPIKE) and any(value > above + log(SHELF) for _, above, _ in around):
            result[point] = exp(should)
    return result, sum(result[point] != ms[point] for point in ms)


def _neighbours(
    point: Point, logs: Mapping[Point, float], axes: Sequence[Sequence[int]], places: Sequence[Mapping[int, int]]
) -> list[tuple[float, float, float]]:
    """Along each axis with both: the smaller neighbour's and the larger's logarithm, and how far the point lies between them."""
    found = []
    for axis, values in enumerate(axes):
        place = places[axis][point[axis]]
        if 0 < place < len(values) - 1:
            before, after = values[place - 1], values[place + 1]
            below, above = ((*point[:axis], value, *point[axis + 1 :]) for value in (before, after))
            if below in logs and above in logs:
                found.append((logs[below], logs[above], log(point[axis] / before) / log(after / before)))
    return found
