"""What a request may cost to be served in its turn while not all can be: a threshold that follows how many come too late. Pure.

On one machine the fewest jobs are late if, whenever one is going to be, the longest so far is given up (Moore 1968). With a stream of
requests that is a threshold on cost: in the long run the most are in time if those above it are given up, and it is as high as the load
allows. The right threshold is not known in advance. It is learned from requests below it that still miss their target.
"""

import math
from collections import deque

_KEEP = 256
_LOOK_EVERY = 32
_LOW, _HIGH = 0.05, 0.98
_GAIN_PER_S = 0.5
"""How fast the logarithm of the threshold falls if all are late. What is decided now shows when those that wait now are due, seconds
later; with more gain than about one in that time the threshold swings."""
_RATE_S = 10.0
_LONGEST_GAP_S = 1.0


class CostThreshold:
    """Threshold on cost, by integral control of the share of arrivals that were affordable and too late.

    In logarithms and in time: d ln(value)/dt = gain * (late_share - share late), whatever the rate of arrivals. Between a low and a
    high quantile of the costs that came last, so that it neither winds up nor stands where nothing comes; above the high one it is
    off. A request that is above the threshold by now does not count when it comes too late: that is answered already.

    Args:
        late_share: Share of arrivals that may be affordable and late, above 0 and below 1.
        start: Where the threshold begins, infinite for off. Begun elsewhere, what comes in the first moment is a queue that was found
            there: it counts neither as arrivals nor for the bounds, and these begin with a few dozen costs.

    Attributes:
        value: The threshold, infinite while all can be served in time.
    """

    __slots__ = ("_at_once", "_costs", "_gap_s", "_gaps", "_high", "_last_s", "_late_share", "_low", "_since", "_span_s", "_told", "value")

    def __init__(self, late_share: float, start: float = math.inf) -> None:
        self.value = start
        self._told = start < math.inf
        self._late_share = late_share
        self._costs: deque[float] = deque(maxlen=_KEEP)
        self._since = 0
        self._low = 0.0
        self._high = math.inf
        self._gap_s = _LONGEST_GAP_S
        self._gaps = 0
        self._last_s = -math.inf
        self._span_s = -1.0
        self._at_once = 0

    def arrived(self, cost: float, now_s: float) -> None:
        """A request of that cost has come: takes note of it, and makes up for the share that may be late."""
        self._keep_time(now_s)
        if self._told and self._span_s < 0.0:
            return
        self.known(cost)
        if self.value < math.inf:
            self._move(_GAIN_PER_S * self._gap_s * self._late_share)

    def known(self, cost: float) -> None:
        """Takes note of a cost that is no arrival."""
        self._costs.append(cost)
        self._since += 1
        if self._since >= _LOOK_EVERY or len(self._costs) < _LOOK_EVERY:
            self._since = 0
            if self._told and len(self._costs) < _LOOK_EVERY:
                return
            ordered = sorted(self._costs)
            self._low, self._high = ordered[int(_LOW * len(ordered))], ordered[int(_HIGH * len(ordered))]

    def on_overdue(self, cost: float) -> None:
        """A request of that cost has become too late while it waited in its turn."""
        # Without two moments at which some came there is no rate by which to say what one is worth.
        if cost <= self.value and self._gaps:
            self.value = min(self.value, self._high)
            self._move(-_GAIN_PER_S * self._gap_s * (1.0 - self._late_share))

    def _keep_time(self, now_s: float) -> None:
        """Learns the mean time between arrivals. Of those that come at one moment, all share the time since the moment before."""
        if now_s <= self._last_s:
            self._at_once += 1
            return
        if self._span_s >= 0.0:
            gap_s = self._span_s / self._at_once
            self._gaps += self._at_once
            self._gap_s += (gap_s - self._gap_s) * max(self._at_once / self._gaps, min(0.125, self._at_once * self._gap_s / _RATE_S))
        self._span_s = min(_LONGEST_GAP_S, now_s - self._last_s) if self._last_s > -math.inf else -1.0
        self._last_s, self._at_once = now_s, 1

    def _move(self, by: float) -> None:
        value = max(self._low, self.value * math.exp(by))
        self.value = math.inf if value > self._high else value
