"""Exponentially smoothed outcomes; late messages count at their own time. Pure."""

import math

import numpy as np
import numpy.typing as npt

from hmas.agents.qos.outcomes import Tally, shares
from hmas.agents.qos.panes import PaneRing
from hmas.agents.qos.sketch import Counts
from hmas.controller.core.messages.views import SmoothedOutcomes


class Smoothing:
    """Weights sub-windows by exp(-age / window). Shares are taken of the weighted counts, so an idle time changes no share.

    Sub-windows within the window are weighted on demand; only a sub-window that leaves it, and can no longer change, is folded into one
    sum. The newest window has 63 % of the weight.

    Args:
        panes: Sub-windows in a window.
        first, last: Columns of the smoothed counts, as `Tally` names them.
    """

    def __init__(self, panes: int, first: int, last: int) -> None:
        self._fade = math.exp(-1.0 / panes)
        self._first, self._last = first, last
        self._gone: npt.NDArray[np.float64] = np.zeros(last - first + 1)
        self._newest: int | None = None

    def leave(self, number: int, row: Counts) -> None:
        """Takes a sub-window that leaves the window; they arrive in order of their numbers."""
        self._gone = self._left(number) + row[self._first : self._last + 1]
        self._newest = number

    def clear(self) -> None:
        """Forgets everything."""
        self._gone[:] = 0.0
        self._newest = None

    def outcomes(self, ring: PaneRing) -> SmoothedOutcomes:
        """Returns the shares as of the ring's newest sub-window."""
        if ring.head is None:
            return SmoothedOutcomes()
        ages = np.arange(ring.rows - 1, -1, -1)
        inside = self._fade**ages @ ring.columns(self._first, self._last)
        tally = Tally(*(inside + self._left(ring.head)).tolist())
        found = shares(tally)
        return SmoothedOutcomes(
            samples=tally.judged,
            goodput_rate=1.0 - found.missed if tally.judged > 0.0 else 0.0,
            violation_rate=found.missed,
            ttft_violation_rate=found.ttft,
            tpot_violation_rate=found.tpot,
        )

    def _left(self, number: int) -> npt.NDArray[np.float64]:
        """Returns the remaining weight, at that sub-window, of all that left the window before."""
        return self._gone if self._newest is None else self._gone * self._fade ** (number - self._newest)
