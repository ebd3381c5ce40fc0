"""The recent values of `robust-edf`'s cost threshold: a replay begins with the last one instead of searching for it again. Pure."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

from hmas.controller.core.messages import SystemSnapshot
from hmas.controller.scheduling.policies.robust_edf import COST_THRESHOLD_MOST, RobustEdf

EVERY_S = 1.0
KEPT = 1_024
NEAR_S = 5.0
"""Largest time difference at which a reading is used."""

Reading = tuple[float, float]


class CostThresholds:
    """The threshold as the gateway reported it while `robust-edf` was active, else as in the last replay of `robust-edf`.

    Finding a threshold takes some ten seconds and costs requests, once. A replay that forecasts begins with the threshold known now;
    one that is compared with what happened begins with the threshold that was known then.
    """

    def __init__(self) -> None:
        self._true: deque[Reading] = deque(maxlen=KEPT)
        self._replayed: Sequence[Reading] = ()

    def observe(self, snapshot: SystemSnapshot) -> None:
        """Records the threshold of a snapshot taken under `robust-edf`."""
        if snapshot.policy != RobustEdf.name or not 0.0 <= snapshot.cost_threshold <= COST_THRESHOLD_MOST:
            return
        if self._true and snapshot.sent_s < self._true[-1][0]:
            # The clock went back: readings of the old clock are useless.
            self._true.clear()
        if not self._true or snapshot.sent_s >= self._true[-1][0] + EVERY_S:
            self._true.append((snapshot.sent_s, snapshot.cost_threshold))

    def replayed(self, readings: Sequence[Reading]) -> None:
        """Records the thresholds of the last replay of `robust-edf`, by rising time."""
        self._replayed = readings

    def at(self, at_s: float) -> float:
        """The threshold at that time, a cost in tokens; 0 if it was off or is not known."""
        for readings in (self._true, self._replayed):
            place = bisect_right(readings, at_s, key=itemgetter(0)) - 1
            near = [readings[at] for at in (place, place + 1) if 0 <= at < len(readings)]
            if near:
                told_s, value = min(near, key=lambda one: abs(one[0] - at_s))
                if abs(told_s - at_s) <= NEAR_S:
                    return value
        return 0.0
