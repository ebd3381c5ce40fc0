"""Counts which of the requests that recently ended on an instance missed their TPOT target. Pure and bounded.

The figures of a short view are of the whole gateway. With several instances they would lower the window of one for what another misses.
"""

from collections import deque

from hmas.agents.statera.guard_factor import KEPT, SAMPLES_MIN
from hmas.controller.core.messages import Completion, ShortView
from hmas.controller.core.types import OutcomeKind


class RecentMisses:
    """The newest ends on one instance, `KEPT` at most, counted as qos counts those of the gateway."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, bool]] = deque()
        self._missed = 0

    def learn(self, completion: Completion) -> None:
        """Takes an ended request; an end that its client caused (it left, or sent what cannot be served) does not count."""
        if completion.outcome is OutcomeKind.CANCELLED or 400 <= completion.status < 429:
            return
        missed = 0.0 < completion.tpot_slo_ms < completion.tpot_ms
        self._ended.append((completion.arrival_s + completion.total_ms / 1000.0, missed))
        self._missed += missed
        if len(self._ended) > KEPT:
            self._forget_oldest()

    def share(self, view: ShortView, now_s: float) -> float:
        """Share of TPOT misses among the requests that ended within the view's window; 0 if they are fewer than `SAMPLES_MIN`.

        With one instance the view's own share is used. It also counts requests that never ran.
        """
        if len(view.instances) == 1:
            return view.tpot_violation_rate if view.ended >= SAMPLES_MIN else 0.0
        while self._ended and self._ended[0][0] < now_s - view.window_s:
            self._forget_oldest()
        return self._missed / len(self._ended) if len(self._ended) >= SAMPLES_MIN else 0.0

    def _forget_oldest(self) -> None:
        self._missed -= self._ended.popleft()[1]
