"""Two sketches in bounded memory with a known error: quantiles of a stream's values, and the names that make up most of it. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Counts: TypeAlias = npt.NDArray[np.int64]

ALPHA = 0.01
"""Relative error of every value that is read back."""
KEPT = 64
"""No name with a share above 1 / (KEPT + 1) is missed. Up to twice as many names are held, and with no more names all counts are exact."""


class LogBuckets:
    """Maps values to logarithmic buckets, and counts by bucket back to values.

    The idea is DDSketch's (Masson, Rim, Lee 2019): bucket boundaries grow by gamma = (1 + alpha) / (1 - alpha), so the middle of a bucket
    is within alpha of every value in it, for any distribution. Here the range is fixed at the start, so the buckets of all sub-windows
    align in plain arrays: a merge is an addition, exact and independent of order.

    Bucket 0 holds values below `lowest` and reads back as 0: an absolute error below `lowest`. Values above `highest` read back as
    about `highest`. All others read back within `ALPHA` of themselves.

    Args:
        lowest: Smallest value distinguished from 0, more than 0.
        highest: Largest value distinguished from larger ones.

    Attributes:
        size: Number of buckets.
    """

    def __init__(self, lowest: float, highest: float) -> None:
        step = math.log((1.0 + ALPHA) / (1.0 - ALPHA))
        self._scale = 1.0 / step
        self._lowest = lowest
        self._highest = highest
        self._top = 1 + math.floor(math.log(highest / lowest) * self._scale)
        self.size = self._top + 1
        # The relative distance to both ends of its bucket is the same.
        middles = lowest * np.exp(step * np.arange(self._top)) * (1.0 + ALPHA)
        self._values = np.concatenate(([0.0], middles))

    def index(self, value: float) -> int:
        """Returns the bucket of a value; NaN and negative values count as 0."""
        if not value >= self._lowest:
            return 0
        if value > self._highest:
            return self._top
        return 1 + int(math.log(value / self._lowest) * self._scale)

    def percentiles(self, counts: Counts, qs: Sequence[float]) -> list[float]:
        """Returns the q-th percentiles, 0 to 100, within `ALPHA` of `core.objectives.percentile`; 0 for an empty sketch."""
        up_to = counts.cumsum()
        total = int(up_to[-1])
        if not total:
            return [0.0] * len(qs)
        places = [(total - 1) * min(100.0, max(0.0, q)) / 100.0 for q in qs]
        lows = [math.floor(place) for place in places]
        ranks = np.array(lows + [min(low + 1, total - 1) for low in lows])
        found = self._values[up_to.searchsorted(ranks, side="right")]
        # Both neighbours are within ALPHA, so anything between them is.
        return [
            float(below + (above - below) * (place - low))
            for place, low, below, above in zip(places, lows, found[: len(qs)], found[len(qs) :], strict=True)
        ]

    def mean(self, counts: Counts) -> float:
        """Returns the mean, within `ALPHA`; 0 for an empty sketch."""
        total = int(counts.sum())
        return float(counts @ self._values) / total if total else 0.0

    def variation(self, counts: Counts) -> float:
        """Returns the coefficient of variation c (standard deviation over mean); 0 with fewer than two values or a mean of 0.

        Each value is off by at most ALPHA of itself, so the deviation is off by at most ALPHA times the root of the mean square, and the
        mean by ALPHA times itself: the error is at most ALPHA (sqrt(1 + c^2) + c) / (1 - ALPHA).
        """
        total = int(counts.sum())
        mean = self.mean(counts)
        if total < 2 or mean <= 0.0:
            return 0.0
        used = np.flatnonzero(counts)
        spread = self._values[used] - mean
        return float(math.sqrt(float(counts[used] @ (spread * spread)) / total) / mean)

    def share_above(self, counts: Counts, value: float) -> float:
        """Returns the share of counts above `value`; the counts in the bucket of `value` itself are split evenly. 0 for an empty sketch."""
        total = int(counts.sum())
        if not total:
            return 0.0
        at = self.index(value)
        return float(int(counts[at + 1 :].sum()) + 0.5 * int(counts[at])) / total

    def log_mean(self, counts: Counts) -> float:
        """Returns the mean of ln(value) over values above `lowest`, within `ALPHA` / (1 - ALPHA); 0 without any."""
        above = counts[1:]
        total = int(above.sum())
        return float(above @ np.log(self._values[1:])) / total if total else 0.0


@dataclass(slots=True)
class Share:
    """One name's part: a lower bound of its requests, and the tokens asked for and served since the name was last added."""

    count: int = 0
    asked: int = 0
    served: int = 0


class HeavyHitters:
    """Counts by name. A call costs O(1) on average.

    This is Misra and Gries' summary, emptied by halves: when it holds more than twice `KEPT` names, the count of the (KEPT + 1)-th
    largest is subtracted from all, and names without a remaining count are dropped. Each time, at least KEPT + 1 names lose the same
    amount, so one name loses at most the stream over KEPT + 1 in total. Summaries of parts of a stream add up (Agarwal et al. 2012), and
    so do their errors.

    Attributes:
        held: The held counts by name.
        total: Requests counted.
        error: Most by which a name's count may be too low: 0 up to 2 `KEPT` names, and at most total / (KEPT + 1).
    """

    def __init__(self) -> None:
        self.held: dict[str, Share] = {}
        self.total = 0
        self.error = 0

    def add(self, name: str, asked: int, served: int) -> None:
        """Counts one request."""
        self.total += 1
        self._add(name, 1, asked, served)
        self._shrink()

    def merge(self, other: "HeavyHitters") -> None:
        """Adds the counts of another summary."""
        for name, theirs in other.held.items():
            self._add(name, theirs.count, theirs.asked, theirs.served)
        self.total += other.total
        self.error += other.error
        self._shrink()

    def _add(self, name: str, count: int, asked: int, served: int) -> None:
        share = self.held.get(name)
        if share is None:
            share = self.held[name] = Share()
        share.count += count
        share.asked += asked
        share.served += served

    def _shrink(self) -> None:
        if len(self.held) <= 2 * KEPT:
            return
        taken = sorted((share.count for share in self.held.values()), reverse=True)[KEPT]
        self.error += taken
        for share in self.held.values():
            share.count -= taken
        self.held = {name: share for name, share in self.held.items() if share.count > 0}


def merged(parts: Iterable[HeavyHitters]) -> HeavyHitters:
    """Returns one summary of all parts."""
    whole = HeavyHitters()
    for part in parts:
        whole.merge(part)
    return whole
