"""How fast the queue is worked off."""

from collections import deque

_WINDOW_S = 30.0
_EVERY_S = 0.5
_LEAST_S = 1.0


class DrainRate:
    """Work that left the queue per second, over the last 30 s: from samples of a sum that only grows, twice a second at most."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=int(_WINDOW_S / _EVERY_S) + 1)

    def sample(self, now_s: float, left: int) -> None:
        """Takes the sum as it is now."""
        if not self._samples or now_s - self._samples[-1][0] >= _EVERY_S:
            self._samples.append((now_s, left))

    def per_second(self, now_s: float, left: int) -> float:
        """Work per second over the window, or over the time since the first sample where that is shorter; 0 before there is one."""
        first = next((sample for sample in self._samples if now_s - sample[0] <= _WINDOW_S), None)
        if first is None:
            return 0.0
        return (left - first[1]) / max(_LEAST_S, now_s - first[0])
