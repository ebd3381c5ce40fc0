"""Outcomes smoothed exponentially, with what comes late at its own place in time. Pure."""

import math

import numpy as np
import numpy.typing as npt

from hmas.agents.qos.outcomes import Tally, shares
from hmas.agents.qos.panes import PaneRing
from hmas.agents.qos.sketch import Counts
from hmas.controller.core.messages.views import SmoothedOutcomes


class Smoothing:
    """Weighs sub-windows by exp(-age / window). Shares are taken of the weighed counts, so an idle time changes no share.

    What is within the window is weighed when it is asked for; only a sub-window that leaves it, and can change no more, is folded into
    one sum. The newest window has 63 % of the weight.

    Args:
        panes: Sub-windows in a window.
        first, last: Columns of the counts that are smoothed, as `Tally` names them.
    """

    def __init__(self, panes: int, first: int, last: int) -> None:
        self._fade = math.exp(-1.0 / panes)
        self._first, self._last = first, last
        self._gone: npt.NDArray[np.float64] = np.zeros(last - first + 1)
        self._newest: int | None = None

    def leave(self, number: int, row: Counts) -> None:
        """Takes a sub-window that leaves the window; they come in order of their numbers."""
        self._gone = self._left(number) + row[self._first : self._last + 1]
        self._newest = number

    def clear(self) -> None:
        """Forgets everything."""
        self._gone[:] = 0.0
        self._newest = None

    def outcomes(self, ring: PaneRing) -> SmoothedOutcomes:
        """The shares as of the ring's newest sub-window."""
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
        """What is left, at that sub-window, of all that has left the window before."""
        return self._gone if self._newest is None else self._gone * self._fade ** (number - self._newest)
