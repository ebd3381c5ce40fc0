"""Quantiles of values at hand, of the newest ones, and of all that come one at a time. Pure."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-th percentile, 0 to 100, of values in ascending order; linear between neighbours (Hyndman and Fan's type 7, numpy's default).

    Returns 0 for no values.
    """
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * min(100.0, max(0.0, q)) / 100.0
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    below, above = ordered[low], ordered[high]
    # Equal neighbours are returned unchanged: interpolation could leave their range by rounding.
    return below if below == above else below + (above - below) * (place - low)


def tracked(quantile: float, level: float, step: float, below: float) -> float:
    """Returns a tracked quantile after one more value: `step * level` higher if the value exceeds it, else `step * (1 - level)` lower.

    The share of values below it so converges to the level for any sequence of values, also under drift: after n values with a constant
    step the two differ by at most (R + step) / (step * n), where R is the range of the values (Gibbs and Candes, "Adaptive conformal
    inference under distribution shift", 2021, proposition 4.1; Angelopoulos et al., "Conformal PID control", 2023). Times are best tracked
    as logarithms, or with a step in proportion to the quantile.

    Args:
        quantile: The quantile so far, or what is added to a forecast of it.
        level: Between 0 and 1.
        step: How far one value moves it at most, in its own unit.
        below: 1 if the value is at or below the quantile, else 0; in between if that is known only in part.
    """
    return quantile + step * (level - below)


def pinball(value: float, quantile: float, level: float) -> float:
    """The pinball loss of a predicted quantile at `level` for a value, 0 at best. Its mean is least for the true quantile."""
    away = value - quantile
    return level * away if away >= 0.0 else (level - 1.0) * away


class SortedWindow:
    """The newest `limit` values, in ascending order: `ordered`."""

    def __init__(self, limit: int) -> None:
        self.ordered: list[float] = []
        self._arrived: deque[float] = deque()
        self._limit = limit

    def __len__(self) -> int:
        return len(self.ordered)

    def add(self, value: float) -> None:
        """Adds a value; a full window drops its oldest."""
        if len(self._arrived) == self._limit:
            del self.ordered[bisect_left(self.ordered, self._arrived.popleft())]
        self._arrived.append(value)
        insort(self.ordered, value)

    def share_within(self, value: float) -> float:
        """The share of the values that are at most `value`; 0 without values."""
        return bisect_right(self.ordered, value) / max(1, len(self.ordered))

    def conformal_bound(self, risk: float) -> float | None:
        """Returns the finite-sample conformal bound, the ceil((n + 1)(1 - risk))-th smallest value; None if there are too few for the risk.

        A value that is exchangeable with those of the window exceeds it with a probability of `risk` at most.
        """
        rank = math.ceil((len(self.ordered) + 1) * (1.0 - risk))
        return self.ordered[rank - 1] if 1 <= rank <= len(self.ordered) else None
