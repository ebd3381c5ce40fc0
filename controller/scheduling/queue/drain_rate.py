"""How the requests that wait for the same instances leave: how fast their work does, and whether the overdue ones are served in the end."""

from collections import deque

_WINDOW_S = 30.0
_EVERY_S = 0.5
_LEAST_S = 1.0
_NEWEST = 32
_DROPPED_SHARE = 0.2


class QueuedWork:
    """The work of all requests that wait for the same instances, and how fast it leaves. `Backlog` updates the two sums.

    Work is the service-time proxy T_tot, in whole microseconds, so that sums are exact. The rate is that over the last 30 s, from at most
    two samples per second. While no request waits, work leaves as fast as it comes, which does not show how fast it could leave. So the
    time in which a request waited is counted separately, with the work that left in it. If there is too little such time, the rate over
    all the time is used as a lower bound.

    Attributes:
        ready_us: Work ahead of a request that comes now: that of requests in time, and that of overdue ones if those keep their place.
        left_us: Work that has left since the start: dispatched, ended or, if overdue requests make way, become overdue. It never falls.
    """

    __slots__ = ("_at_s", "_busy_left_us", "_busy_s", "_left_us", "_samples", "_waiting", "left_us", "ready_us")

    def __init__(self) -> None:
        self.ready_us = 0
        self.left_us = 0
        self._samples: deque[tuple[float, int, float, int]] = deque(maxlen=int(_WINDOW_S / _EVERY_S) + 1)
        self._at_s = 0.0
        self._left_us = 0
        self._waiting = False
        self._busy_s = 0.0
        self._busy_left_us = 0

    def sample(self, now_s: float) -> None:
        """Samples how much work has left; called at regular intervals and after each dispatch."""
        if self._waiting:
            self._busy_s += now_s - self._at_s
            self._busy_left_us += self.left_us - self._left_us
        self._at_s, self._left_us, self._waiting = now_s, self.left_us, self.ready_us > 0
        if not self._samples or now_s - self._samples[-1][0] >= _EVERY_S:
            self._samples.append((now_s, self.left_us, self._busy_s, self._busy_left_us))

    def per_second(self, now_s: float) -> float:
        """Microseconds of work per second over the window, or since the first sample if that is shorter; 0 before the first sample."""
        first = next((sample for sample in self._samples if now_s - sample[0] <= _WINDOW_S), None)
        if first is None:
            return 0.0
        rate = (self.left_us - first[1]) / max(_LEAST_S, now_s - first[0])
        busy_s, busy_left_us = self._busy_s - first[2], self._busy_left_us - first[3]
        if self._waiting:
            busy_s += now_s - self._at_s
            busy_left_us += self.left_us - self._left_us
        return max(rate, busy_left_us / busy_s) if busy_s >= _LEAST_S else rate

    def wait_s(self, now_s: float) -> float:
        """How long a request that comes now would wait: the work ahead of it, over the rate. Infinite if work waits and none leaves."""
        if not self.ready_us:
            return 0.0
        rate = self.per_second(now_s)
        return self.ready_us / rate if rate > 0.0 else float("inf")


class GivenUp:
    """The outcomes of a queue's newest overdue requests: served in the end, or given up.

    To let a request wait until it is late has a price, its missed target, and a gain only if its work is then never done. If engines can do
    all the work that comes, overdue requests are served in the next lull, and nothing is gained.

    Attributes:
        spares_work: Whether more than a fifth of the newest 32 were dropped: then the engines have more work than they can do.
    """

    __slots__ = ("_dropped", "spares_work")

    def __init__(self) -> None:
        self._dropped: deque[bool] = deque(maxlen=_NEWEST)
        self.spares_work = False

    def ended(self, *, dropped: bool) -> None:
        """Records that an overdue request was dispatched, or was dropped unserved."""
        self._dropped.append(dropped)
        self.spares_work = sum(self._dropped) > _DROPPED_SHARE * len(self._dropped)
