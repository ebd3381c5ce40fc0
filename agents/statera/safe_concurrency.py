"""The window below which no target is at risk; a smaller window would limit without benefit. Pure and bounded.

In steady state u(n), utilization as `ShortView` has it, is affine in n without negative terms: a + b n for TPOT, b n for the KV cache.
Its elasticity lies between 0 and 1, so n / u(n) never falls as n grows, and u stays at or below u_low at least up to n * u_low / u(n); on
the steepest such plant exactly up to there. A window below that holds requests back for no benefit.
"""

import math
from collections import deque

VIEWS = 8
"""Views over which the minimum is taken: u lags behind n, so after a jump of n their ratio is too high for this long."""
U_LEAST = 0.05
"""Smallest utilization that is used; lower readings only show that there is almost none."""


class SafeConcurrency:
    """The least n * u_low / u over the newest views."""

    def __init__(self) -> None:
        self._bounds: deque[float] = deque(maxlen=VIEWS)

    def sample(self, in_flight: int, u: float, u_low: float) -> None:
        """Takes a view with requests in flight and a known u."""
        self._bounds.append(in_flight * u_low / max(U_LEAST, u))

    def forget(self) -> None:
        """Clears the bounds, because targets were missed or the instance was away; nothing is known to be safe."""
        self._bounds.clear()

    @property
    def n_run(self) -> int:
        """Requests that may be in flight with no target at risk; 0 if not known."""
        return math.floor(min(self._bounds)) if len(self._bounds) == VIEWS else 0
