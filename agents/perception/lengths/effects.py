"""What tenants, models, tasks and conversations add to the log of an output length: crossed effects, learnt one completion at a time. Pure.

A length is what its question leads one to expect plus one effect per group that the request belongs to. Every effect starts at zero with
the variance that its level has among installations, and a completion moves each by its share of the surprise (a Kalman filter with a
diagonal covariance): what could as well be the prompt's doing moves the tenant little, and groups with many answers move the least.
Variances never fall below a level's drift, so that a shift of the workload is followed.
"""

from collections import OrderedDict
from collections.abc import Hashable

import msgspec

GROUPS = 30_000
"""Groups remembered, of all levels together (about 10 MB); the one longest without an answer goes first."""
CLIP = 3.0
"""Surprises count up to this many standard deviations: a degenerate output of 50,000 tokens is one odd output."""


class Level(msgspec.Struct, frozen=True):
    """One kind of group.

    Attributes:
        variance: Of its effects before anything is known, in squared log units.
        floor: Variance below which no effect's own falls: how far it may have drifted since.
        of_spread: Variance as a share of the squared spread of the expectation, instead of `variance`: what a question itself hides and
            later answers to it show.
    """

    name: str
    variance: float
    floor: float
    of_spread: float = 0.0


class Membership(msgspec.Struct, frozen=True):
    """Where a request belongs.

    Attributes:
        groups: One key per level, None where the request has none there; the first has one always. Keys of different levels differ.
        spread: Squared spread of the expectation.
        noise: The part of it that is no group's.
        start: Prior mean and variance of the first level's effect, in place of the level's own.
    """

    groups: tuple[Hashable, ...]
    spread: float
    noise: float
    start: tuple[float, float]


class Effect:
    """Mean and variance of one group's effect, and of how many answers it is."""

    __slots__ = ("count", "mean", "variance")

    def __init__(self, mean: float, variance: float) -> None:
        self.mean = mean
        self.variance = variance
        self.count = 0


class Effects:
    """All effects, by level and group.

    Args:
        levels: The levels in the order in which requests name their groups.
        limit: Groups remembered.
    """

    def __init__(self, levels: tuple[Level, ...], limit: int = GROUPS) -> None:
        self.levels = levels
        self._limit = limit
        self._groups: OrderedDict[Hashable, Effect] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def count(self, group: Hashable) -> int:
        """Answers of a group so far."""
        effect = self._groups.get(group)
        return 0 if effect is None else effect.count

    def sum(self, request: Membership) -> tuple[float, float]:
        """Mean and variance of the sum of a request's effects."""
        mean, variance = 0.0, 0.0
        for place, group in enumerate(request.groups):
            if group is not None:
                effect = self._groups.get(group)
                more, doubt = self._start(request, place) if effect is None else (effect.mean, effect.variance)
                mean += more
                variance += doubt
        return mean, variance

    def learn(self, request: Membership, surprise: float, total: float, informed: float) -> None:
        """Moves a request's effects.

        Args:
            request: Its groups.
            surprise: Log length minus what was expected of it; of a censored one, what it must be on average.
            total: Variance that was expected of it, effects and noise together.
            informed: 1 for a length that was seen, less for one that was only seen to exceed a cap.
        """
        bound = CLIP * total**0.5
        step = min(bound, max(-bound, surprise)) / total
        for place, group in enumerate(request.groups):
            if group is None:
                continue
            effect = self._groups.get(group)
            if effect is None:
                effect = self._groups[group] = Effect(*self._start(request, place))
            else:
                self._groups.move_to_end(group)
            effect.mean += effect.variance * step
            effect.variance = max(self.levels[place].floor, effect.variance * (1.0 - informed * effect.variance / total))
            effect.count += 1
        while len(self._groups) > self._limit:
            self._groups.popitem(last=False)

    def _start(self, request: Membership, place: int) -> tuple[float, float]:
        if place == 0:
            return request.start
        level = self.levels[place]
        return 0.0, level.of_spread * request.spread or level.variance
