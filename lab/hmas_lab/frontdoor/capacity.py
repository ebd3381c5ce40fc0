"""What the engines serve at most: good requests per second, read off a load that rises beyond it. Pure."""

from collections.abc import Sequence

import msgspec

from hmas.loadgen.results import Result, is_good

STRETCHES = 10
UNCOUNTED = 3
"""Stretches at the end that are not looked at: less and less arrives after their requests, which so fare better than at their rate."""


class CapacityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of a rising load.

    Attributes:
        rps: Requests that arrived per second.
        good_share: How many of them met their targets.
    """

    rps: float
    good_share: float

    @property
    def good_rps(self) -> float:
        """Good requests per second; its highest value over all stretches is the capacity."""
        return self.rps * self.good_share


def capacity_points(results: Sequence[Result], stretches: int = STRETCHES) -> list[CapacityPoint]:
    """One point for each stretch; all hold about the same number of requests, so that none is more of a chance than another.

    Args:
        results: Of the rising load, in order of arrival.
        stretches: Into how many equal parts the requests are cut.
    """
    points = []
    for number in range(stretches - UNCOUNTED):
        first, last = (len(results) * place // stretches for place in (number, number + 1))
        part = results[first:last]
        if len(part) < 2 or part[-1].at_s <= part[0].at_s:
            continue
        rps = (len(part) - 1) / (part[-1].at_s - part[0].at_s)
        points.append(CapacityPoint(rps=rps, good_share=sum(map(is_good, part)) / len(part)))
    return points


def mean_points(ramps: Sequence[Sequence[CapacityPoint]]) -> list[CapacityPoint]:
    """The points of several ramps as one: at each stretch the mean share of good requests. Their times are the same."""
    return [
        CapacityPoint(rps=points[0].rps, good_share=sum(point.good_share for point in points) / len(points))
        for points in zip(*ramps, strict=True)
    ]
