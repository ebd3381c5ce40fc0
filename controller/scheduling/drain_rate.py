"""How fast the queue empties, for an honest Retry-After."""

from collections import deque

_WINDOW_S = 30


class DrainRate:
    """Requests that left the queue, by the second, over the last 30 s."""

    __slots__ = ("_seconds", "_since_s")

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque(maxlen=_WINDOW_S + 1)
        self._since_s: float | None = None

    def count(self, now_s: float) -> None:
        """One request has left the queue."""
        second = int(now_s)
        if self._since_s is None:
            self._since_s = now_s
        if self._seconds and self._seconds[-1][0] >= second:
            self._seconds[-1][1] += 1
        else:
            self._seconds.append([second, 1])

    def per_second(self, now_s: float) -> float:
        """Departures per second over the window, or over the time since the first where that is shorter; 0 where none left."""
        if self._since_s is None:
            return 0.0
        left = sum(number for second, number in self._seconds if second > now_s - _WINDOW_S)
        return left / min(float(_WINDOW_S), max(1.0, now_s - self._since_s))
