"""Where `red`'s threshold on cost has stood of late: a replay begins there, and not with a threshold that has yet to be found. Pure."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

from hmas.controller.core.messages import SystemSnapshot
from hmas.controller.scheduling.policies.red import CUTOFF_MOST, Red

EVERY_S = 1.0
KEPT = 1_024
NEAR_S = 5.0
"""How far from a moment a reading may be and still tell of it."""

Reading = tuple[float, float]


class Cutoffs:
    """The threshold as the gateway told it while `red` was in force, and where it was not, as the last replay of `red` had it.

    Finding a threshold takes some ten seconds and costs requests, once. A replay that is to say what will come begins with what is known
    by now, or `red` would pay for it anew each time, of a minute at most; one that is held against the truth, with what was known then.
    """

    def __init__(self) -> None:
        self._true: deque[Reading] = deque(maxlen=KEPT)
        self._replayed: Sequence[Reading] = ()

    def observe(self, snapshot: SystemSnapshot) -> None:
        """Where it stands, if it does."""
        if snapshot.policy != Red.name or not 0.0 <= snapshot.cutoff <= CUTOFF_MOST:
            return
        if self._true and snapshot.sent_s < self._true[-1][0]:
            # The clock has gone back: what was read by the other one is of no use.
            self._true.clear()
        if not self._true or snapshot.sent_s >= self._true[-1][0] + EVERY_S:
            self._true.append((snapshot.sent_s, snapshot.cutoff))

    def replayed(self, readings: Sequence[Reading]) -> None:
        """How it moved in the last replay of `red`, by rising time."""
        self._replayed = readings

    def at(self, at_s: float) -> float:
        """Where it stood, or would have stood, then: a cost in tokens, 0 for off or where nobody knows."""
        for readings in (self._true, self._replayed):
            place = bisect_right(readings, at_s, key=itemgetter(0)) - 1
            near = [readings[at] for at in (place, place + 1) if 0 <= at < len(readings)]
            if near:
                told_s, value = min(near, key=lambda one: abs(one[0] - at_s))
                if abs(told_s - at_s) <= NEAR_S:
                    return value
        return 0.0
