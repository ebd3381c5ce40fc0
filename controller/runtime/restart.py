"""The rule for restarts of crashed child processes. Pure."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RestartRule:
    """Exponential backoff with a limit of crashes.

    After the n-th crash in a row the restart waits `first_s * 2^(n-1)`, at most `longest_s`. After a run of `steady_s` or more, the next
    crash counts as the first. After more than `burst` crashes within `window_s` the child is given up.
    """

    first_s: float = 0.2
    longest_s: float = 10.0
    steady_s: float = 20.0
    burst: int = 10
    window_s: float = 300.0


@dataclass(slots=True)
class RestartHistory:
    """The crashes of one child."""

    rule: RestartRule
    in_a_row: int = 0
    total: int = 0
    _crashes: deque[float] = field(default_factory=deque)

    def crashed(self, started_s: float, now_s: float) -> float | None:
        """Records a crash; returns the seconds to wait before the next start, None to give up."""
        self.total += 1
        self.in_a_row = 1 if now_s - started_s >= self.rule.steady_s else self.in_a_row + 1
        self._crashes.append(now_s)
        while self._crashes and now_s - self._crashes[0] > self.rule.window_s:
            self._crashes.popleft()
        if len(self._crashes) > self.rule.burst:
            return None
        # The exponent is bounded to prevent an overflow after many crashes.
        return min(self.rule.longest_s, self.rule.first_s * 2.0 ** min(self.in_a_row - 1, 30))
