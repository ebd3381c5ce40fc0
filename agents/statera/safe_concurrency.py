"""The window below which nothing is in danger: it must not limit. Pure and bounded.

In steady state u(n), utilization as `ShortView` has it, is affine in n with nothing negative in it: a + b n for TPOT, b n for the KV cache.
Its elasticity lies between 0 and 1, so n / u(n) never falls as n grows, and u stays at or below u_low up to n * u_low / u(n) at least, on
the steepest such plant exactly up to there. A window below that holds requests back for nobody's sake.
"""

import math
from collections import deque

VIEWS = 8
"""Views over which the least is taken: u tells of n some time ago, and after a jump of n the ratio of the two is too high for so long."""
U_LEAST = 0.05
"""Utilization below which it says little more than that there is none."""


class SafeConcurrency:
    """The least n * u_low / u over the newest views."""

    def __init__(self) -> None:
        self._bounds: deque[float] = deque(maxlen=VIEWS)

    def sample(self, in_flight: int, u: float, u_low: float) -> None:
        """Takes a view in which something was in flight and u is known."""
        self._bounds.append(in_flight * u_low / max(U_LEAST, u))

    def forget(self) -> None:
        """Something speaks against it, or the instance was away: nothing is known to be free of danger."""
        self._bounds.clear()

    @property
    def n_run(self) -> int:
        """Requests that may be in flight with nobody's target in danger; 0 where that is not known."""
        return math.floor(min(self._bounds)) if len(self._bounds) == VIEWS else 0
