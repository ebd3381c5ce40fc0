"""How fast the work of a queue leaves it."""

from collections import deque

_WINDOW_S = 30.0
_EVERY_S = 0.5
_LEAST_S = 1.0


class DrainRate:
    """Work that left a queue per second over the last 30 s, from samples of a growing sum, at most two per second.

    While no request waits, work leaves as fast as it comes, which does not show how fast it could leave. So the time in which a request
    waited is counted separately, with the work that left in it. If there is too little such time, the rate over all the time is used as a
    lower bound.
    """

    __slots__ = ("_at_s", "_busy_left", "_busy_s", "_left", "_samples", "_waiting")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, float, int]] = deque(maxlen=int(_WINDOW_S / _EVERY_S) + 1)
        self._at_s = 0.0
        self._left = 0
        self._waiting = False
        self._busy_s = 0.0
        self._busy_left = 0

    def sample(self, now_s: float, left: int, *, waiting: bool) -> None:
        """Records the current sum and whether a request waits from now on. Called at regular intervals and whenever work leaves."""
        if self._waiting:
            self._busy_s += now_s - self._at_s
            self._busy_left += left - self._left
        self._at_s, self._left, self._waiting = now_s, left, waiting
        if not self._samples or now_s - self._samples[-1][0] >= _EVERY_S:
            self._samples.append((now_s, left, self._busy_s, self._busy_left))

    def per_second(self, now_s: float, left: int) -> float:
        """Work per second over the window, or over the time since the first sample if that is shorter; 0 before the first sample."""
        first = next((sample for sample in self._samples if now_s - sample[0] <= _WINDOW_S), None)
        if first is None:
            return 0.0
        pace = (left - first[1]) / max(_LEAST_S, now_s - first[0])
        busy_s, busy_left = self._busy_s - first[2], self._busy_left - first[3]
        if self._waiting:
            busy_s += now_s - self._at_s
            busy_left += left - self._left
        return max(pace, busy_left / busy_s) if busy_s >= _LEAST_S else pace
