"""How far lengths scatter around what is expected of them, by group: learnt one completion at a time. Pure, bounded.

The expectation comes with a variance, which is that of prompts in general. Some models answer alike to everything, others now with a word
and now with a page: per group the logarithm of the variance follows the squared surprise (the score of a normal likelihood), first in
large steps and then in small ones, so that a shift is followed.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence

GROUPS = 4096
"""Groups remembered; the one longest without news goes first."""
PRIOR_ANSWERS = 40.0
"""Answers that the general variance counts for; the step after n more is 1 / (n + this)."""
LAST_STEP = 0.005
"""Step that is never gone below."""
CLIP = 9.0
"""Largest squared surprise, in variances: an odd answer is one odd answer."""
BOUND = 3.0
"""Largest logarithm of one group's factor."""


class Scales:
    """Factors of the variance, one per group, which multiply.

    Args:
        limit: Groups remembered.
    """

    def __init__(self, limit: int = GROUPS) -> None:
        self._limit = limit
        self._groups: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def factor(self, groups: Sequence[Hashable | None]) -> float:
        """By how much the variance of a request's length differs from the general one; 1 where nothing is known."""
        get, found = self._groups.get, 0.0
        for name in groups:
            known = get(name)
            if known is not None:
                found += known[0]
        return math.exp(found)

    def learn(self, groups: Sequence[Hashable | None], squared: float) -> None:
        """Takes an outcome into account.

        Args:
            groups: Those of the request; None for one that it has not.
            squared: The squared surprise over the variance that was expected of it; 1 teaches nothing.
        """
        excess = min(CLIP, squared) - 1.0
        for name in groups:
            if name is not None:
                value, answers = self._groups.get(name, (0.0, PRIOR_ANSWERS))
                moved = value + excess * max(LAST_STEP, 1.0 / answers)
                self._groups[name] = min(BOUND, max(-BOUND, moved)), answers + 1.0
                self._groups.move_to_end(name)
        while len(self._groups) > self._limit:
            self._groups.popitem(last=False)
