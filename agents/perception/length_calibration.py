"""Stated quantiles kept honest: each level is moved until as many lengths fall below it as it says. Pure.

Quantile tracking (Gibbs and Candes, "Adaptive conformal inference under distribution shift", 2021; Angelopoulos et al., "Conformal
PID control", 2023): after every outcome a level moves up by `step * level` if the length exceeded it and down by `step * (1 - level)` if
not. So the share of lengths below it goes to the level whatever the lengths do, also under drift; the steps bound how far it is off after
n outcomes. Corrections add up over groups (everything, the task, the model), each of which receives all of its own misses.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from controller.core.lengths import LEVELS

GROUPS = 4096
"""Groups remembered; the one longest without news goes first."""
LAST_STEP = 0.006
FIRST_STEP = 0.06
"""Step before the first outcome of a group and after many, in standard deviations of the forecast."""
SETTLED = 60.0
"""Outcomes after which the step has gone half of the way."""
BOUND = 4.0
"""Largest correction, in standard deviations."""


class _Group:
    __slots__ = ("correction", "count")

    def __init__(self) -> None:
        self.correction = [0.0] * len(LEVELS)
        self.count = 0.0


class Calibration:
    """Corrections to standardised quantiles, learnt from what was stated and what came."""

    def __init__(self, limit: int = GROUPS) -> None:
        self._limit = limit
        self._groups: OrderedDict[Hashable, _Group] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def correction(self, groups: tuple[Hashable, ...]) -> list[float]:
        """Sum of the corrections of a request's groups, by level."""
        found = [group.correction for name in groups if (group := self._groups.get(name)) is not None]
        return [sum(parts) for parts in zip(*found, strict=True)] if found else [0.0] * len(LEVELS)

    def learn(self, groups: tuple[Hashable, ...], below: Sequence[float], weight: float = 1.0) -> None:
        """Takes an outcome into account.

        Args:
            groups: Those of the request.
            below: By level, 1 where the length was at most the stated quantile, else 0; in between where a cap hides which.
            weight: Outcomes that it counts for.
        """
        misses = [level - share for level, share in zip(LEVELS, below, strict=True)]
        for name in groups:
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = _Group()
            else:
                self._groups.move_to_end(name)
            step = weight * (LAST_STEP + (FIRST_STEP - LAST_STEP) * SETTLED / (SETTLED + group.count))
            moved = [value + step * miss for value, miss in zip(group.correction, misses, strict=True)]
            if max(moved) > BOUND or min(moved) < -BOUND:
                moved = [min(BOUND, max(-BOUND, value)) for value in moved]
            group.correction = moved
            group.count += weight
        while len(self._groups) > self._limit:
            self._groups.popitem(last=False)
