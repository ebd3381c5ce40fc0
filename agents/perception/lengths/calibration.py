"""Calibrates the predicted quantiles: how far lengths scatter, and where each level must lie to hold its share of lengths below it. Pure.

Both are learnt by group (everything, the model, the task), one completion at a time, and add up over a request's groups.

- Scatter: the logarithm of the variance follows the squared surprise (the score of a normal likelihood), since some models answer alike
  to everything and others sometimes with a word and sometimes with a page.
- Levels: quantile tracking (`quantiles.tracked`): the share of lengths below a level converges to it for any sequence of lengths.

An answer that was cut off at a cap would have been longer by an unknown amount: `share_below` and `beyond` say what it tells all the same.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np

from hmas.controller.core.lengths import LEVELS
from hmas.controller.core.statistics.quantiles import tracked

GROUPS = 4096
"""Groups remembered; the one longest without an answer is dropped first."""
LAST_STEP = 0.006
FIRST_STEP = 0.06
"""Step of the levels before a group's first outcome and after many, in standard deviations of the forecast."""
SETTLED = 60.0
"""Outcomes after which the step has changed half of the way."""
BOUND = 4.0
"""Largest correction of a level, in standard deviations."""
SCATTER_ANSWERS = 40.0
"""Answers that the general variance counts for; the step of the scatter after n more is 1 / (n + this), at least `SCATTER_STEP`."""
SCATTER_STEP = 0.005
SCATTER_CLIP = 9.0
"""Largest squared surprise, in variances, so that an outlier counts as one answer only."""
SCATTER_BOUND = 3.0
"""Largest logarithm of one group's factor."""


class _Group:
    __slots__ = ("correction", "count", "scatter")

    def __init__(self) -> None:
        self.correction = [0.0] * len(LEVELS)
        self.scatter = 0.0
        self.count = 0


class Calibration:
    """Scatter and corrections of standardised quantiles, learnt from predictions and outcomes."""

    def __init__(self, limit: int = GROUPS) -> None:
        self._limit = limit
        self._groups: OrderedDict[Hashable, _Group] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def scatter(self, groups: Sequence[Hashable]) -> float:
        """Returns the ratio of the variance of a request's length to the general one; 1 if nothing is known."""
        return math.exp(sum(group.scatter for name in groups if (group := self._groups.get(name)) is not None))

    def correction(self, groups: Sequence[Hashable]) -> list[float]:
        """Returns the sum of the corrections of a request's groups, by level."""
        found = [group.correction for name in groups if (group := self._groups.get(name)) is not None]
        return [sum(parts) for parts in zip(*found, strict=True)] if found else [0.0] * len(LEVELS)

    def learn(self, groups: Sequence[Hashable], below: Sequence[float], squared: float) -> None:
        """Takes an outcome into account.

        Args:
            groups: Groups of the request.
            below: By level, 1 if the length was at most the predicted quantile, else 0; a value in between if a cap hides which.
            squared: Squared surprise over its expected variance; 1 changes nothing.
        """
        excess = min(SCATTER_CLIP, squared) - 1.0
        for name in groups:
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = _Group()
            else:
                self._groups.move_to_end(name)
            step = LAST_STEP + (FIRST_STEP - LAST_STEP) * SETTLED / (SETTLED + group.count)
            moved = [tracked(value, level, step, share) for value, level, share in zip(group.correction, LEVELS, below, strict=True)]
            group.correction = [min(BOUND, max(-BOUND, value)) for value in moved]
            scatter = group.scatter + excess * max(SCATTER_STEP, 1.0 / (SCATTER_ANSWERS + group.count))
            group.scatter = min(SCATTER_BOUND, max(-SCATTER_BOUND, scatter))
            group.count += 1
        while len(self._groups) > self._limit:
            self._groups.popitem(last=False)


def share_below(stated: Sequence[float], length: float, *, censored: bool) -> list[float]:
    """By level, whether the length was at most the predicted quantile; behind a cap, the probability of that under the prediction."""
    if not censored:
        return [1.0 if length <= value else 0.0 for value in stated]
    passed = float(np.interp(length, stated, LEVELS, left=0.0))
    return [max(0.0, (level - passed) / (1.0 - passed)) if length <= value else 0.0 for level, value in zip(LEVELS, stated, strict=True)]


def beyond(standing: float) -> tuple[float, float]:
    """Returns the mean of a standard normal beyond `standing`, and the share of its variance that this knowledge removes (Tobit)."""
    if standing > 6.0:
        return standing, 1.0
    density = math.exp(-0.5 * standing * standing) / math.sqrt(2.0 * math.pi)
    tail = 0.5 * math.erfc(standing / math.sqrt(2.0))
    mean = density / max(tail, 1e-300)
    return mean, min(1.0, max(0.0, mean * (mean - standing)))
