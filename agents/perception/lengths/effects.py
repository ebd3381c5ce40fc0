"""Effects of tenants, models, tasks and conversations on the log output length: crossed effects, learnt one completion at a time. Pure.

A length is the expectation from its question plus one effect per group of the request. Every effect starts at zero with the variance that
its level has among installations, and a completion moves each by its share of the surprise (a Kalman filter with a diagonal covariance):
a surprise that the prompt may explain as well moves the tenant little, and groups with many answers move the least. Variances never fall
below a level's drift, so that effects follow a shift of the workload.
"""

from collections import OrderedDict
from collections.abc import Hashable

import msgspec

GROUPS = 30_000
"""Groups remembered, of all levels together (about 10 MB); the one longest without an answer is dropped first."""
CLIP = 3.0
"""Surprises count up to this many standard deviations: a degenerate output of 50,000 tokens is one outlier."""


class Level(msgspec.Struct, frozen=True):
    """One kind of group.

    Attributes:
        variance: Variance of its effects before anything is known, in squared log units.
        floor: Smallest variance of an effect: how far it may have drifted since.
        of_spread: Variance as a share of the squared spread of the expectation, instead of `variance`: what a question alone does not show
            and later answers to it do.
    """

    name: str
    variance: float
    floor: float
    of_spread: float = 0.0


class Membership(msgspec.Struct, frozen=True):
    """The groups of a request.

    Attributes:
        groups: One key per level, None if the request has none there; the first level always has one. Keys of different levels differ.
        spread: Squared spread of the expectation.
        noise: The part of it that belongs to no group.
        start: Prior mean and variance of the first level's effect, in place of the level's own.
    """

    groups: tuple[Hashable, ...]
    spread: float
    noise: float
    start: tuple[float, float]


class Effect:
    """Mean and variance of one group's effect, and its number of answers."""

    __slots__ = ("count", "mean", "variance")

    def __init__(self, mean: float, variance: float) -> None:
        self.mean = mean
        self.variance = variance
        self.count = 0


class Effects:
    """All effects, by level, in the order in which requests name their groups, and by group; the newest `limit` groups."""

    def __init__(self, levels: tuple[Level, ...], limit: int = GROUPS) -> None:
        self.levels = levels
        self._limit = limit
        self._groups: OrderedDict[Hashable, Effect] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def count(self, group: Hashable) -> int:
        """Returns the number of answers of a group so far."""
        effect = self._groups.get(group)
        return 0 if effect is None else effect.count

    def sum(self, request: Membership) -> tuple[float, float]:
        """Returns mean and variance of the sum of a request's effects."""
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
            surprise: Log length minus its expectation; for a censored one, the mean of what it must be.
            total: Variance of the expectation, effects and noise together.
            informed: 1 for a length that was observed, less for one that only exceeded a cap.
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
