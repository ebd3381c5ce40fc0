"""What the engines serve at most: good requests per second, by how many are out at once. Pure."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from hmas.lab.results import Result, is_good


class CapacityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of a closed loop in which the number of requests out rises.

    Attributes:
        level: Requests out at once, in the middle of the stretch.
        rps: Requests per second that the output tokens delivered come to: steadier than counting the few requests that end.
        good_share: Of those that ended, how many met their targets. `ended`: how many that is.
    """

    level: float
    rps: float
    good_share: float
    ended: int

    @property
    def good_rps(self) -> float:
        """Good requests per second."""
        return self.rps * self.good_share


def capacity_points(results: Sequence[Result], levels: Sequence[tuple[float, float]], *, lengths_known: bool) -> list[CapacityPoint]:
    """One point for each stretch between two levels, the first one left out: in it the engines fill up.

    Args:
        results: Of the closed loop; those that had not ended when it did hold what had come of them.
        levels: As `LoadSpec.levels`.
        lengths_known: Whether answers are as long as was wanted; else the mean is taken over those that ended, which are the shorter ones.
    """
    ended = [r for r in results if r.outcome == "completed"]
    lengths = [r.wanted_tokens * r.answers for r in results] if lengths_known else [r.output_tokens for r in ended]
    mean_tokens = sum(lengths) / len(lengths) if lengths else 0.0
    points = []
    for (from_s, low), (to_s, high) in list(pairwise(levels))[1:]:
        tokens = sum(_tokens_between(r, from_s, to_s) for r in results)
        inside = [r for r in ended if from_s <= _end_s(r) < to_s]
        points.append(
            CapacityPoint(
                level=(low + high) / 2.0,
                rps=tokens / (to_s - from_s) / mean_tokens if mean_tokens else 0.0,
                good_share=sum(map(is_good, inside)) / len(inside) if inside else 0.0,
                ended=len(inside),
            )
        )
    return points


def _end_s(result: Result) -> float:
    return result.at_s + max(0.0, result.total_ms) / 1000.0


def _tokens_between(result: Result, from_s: float, to_s: float) -> float:
    """Output tokens that came within a span, as if they came evenly from the first to the end (from the start where none is seen)."""
    start_s = result.at_s + max(0.0, result.ttft_ms) / 1000.0
    end_s = _end_s(result)
    if end_s <= start_s:
        return float(result.output_tokens) if from_s <= end_s < to_s else 0.0
    return result.output_tokens * max(0.0, min(end_s, to_s) - max(start_s, from_s)) / (end_s - start_s)
