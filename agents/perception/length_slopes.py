"""How much longer a model's answers become where longer ones are expected: one slope per model, learnt one completion at a time. Pure.

Models differ not by a factor alone: one that is terse in small talk may be as long as any other in essays. So the log length gets a term
that is linear in how far the expectation for an average model is from the usual, with a slope per model that starts at zero and is learnt
like an effect (`length_effects`).
"""

from collections import OrderedDict
from collections.abc import Hashable

GROUPS = 4096
"""Models remembered; the one longest without news goes first."""
VARIANCE = 0.02
"""Of slopes among models. Collections left out prefer 0.04 by a little; the smaller one was taken because the larger cost a collection
tokens in the mixed stream."""
FLOOR = 0.0005
"""Variance that no slope's own falls below: how far it may have drifted since."""
USUAL = 5.3
"""Log length around which models turn: about 200 tokens."""
REACH = 2.0
"""Distance from it that counts at most: nothing is carried on beyond what was seen."""


def distance(expected: float) -> float:
    """How far an expected log length is from the usual one, bounded."""
    return min(REACH, max(-REACH, expected - USUAL))


class Slopes:
    """Mean and variance of each model's slope.

    Args:
        limit: Models remembered.
    """

    def __init__(self, limit: int = GROUPS) -> None:
        self._limit = limit
        self._models: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    def of(self, model: Hashable) -> tuple[float, float]:
        """Mean and variance of a model's slope."""
        return self._models.get(model, (0.0, VARIANCE))

    def learn(self, model: Hashable, away: float, step: float, total: float, informed: float) -> None:
        """Moves a model's slope.

        Args:
            model: Whose answer it was.
            away: From `distance`.
            step: The bounded surprise over its variance.
            total: That variance.
            informed: As in `length_effects.Effects.learn`.
        """
        mean, variance = self.of(model)
        moved = mean + variance * away * step
        self._models[model] = moved, max(FLOOR, variance * (1.0 - informed * variance * away * away / total))
        self._models.move_to_end(model)
        if len(self._models) > self._limit:
            self._models.popitem(last=False)
