"""A threshold on the cost of a request that is served in its turn, which follows how many requests become too late. Pure.

On one machine the fewest jobs are late if, whenever one is about to be late, the longest so far is given up (Moore 1968). With a stream of
requests that becomes a threshold on cost: in the long run the most requests are in time if those above it are given up, and it is as high
as the load allows. The right threshold is not known in advance; it is learned from requests below it that still miss their target.
"""

import math
from collections import deque
from collections.abc import Sequence

_KEEP = 256
_LOOK_EVERY = 32
_LOW, _HIGH = 0.05, 0.98
_GAIN_PER_S = 0.5
"""How fast the logarithm of the threshold falls if all requests are late. The effect of a decision shows seconds later, when the requests
that wait now are due; with more gain than about one in that time the threshold oscillates."""
_RATE_S = 10.0
_LONGEST_GAP_S = 1.0


class CostThreshold:
    """A threshold on cost, by integral control of the share of arrivals that were affordable and too late.

    The control works in logarithms and in time: d ln(value)/dt = gain * (late_share - share late), at any rate of arrivals. The value stays
    between a low and a high quantile of the most recent costs, so that it neither winds up nor stays where no request comes; above the high
    quantile the threshold is off. A request that is above the threshold by now does not count when it becomes too late: the threshold has
    already dealt with it.

    Args:
        late_share: Share of arrivals that may be affordable and late, above 0 and below 1.
        start: Where the threshold begins, infinite for off. With a finite start, the requests of the first moment count as a queue that was
            already there: they count neither as arrivals nor for the bounds, and the bounds start with a few dozen costs.

    Attributes:
        value: The threshold, infinite while all requests can be served in time.
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
        """Records the arrival of a request of that cost, and raises the threshold by the share that may be late."""
        self._keep_time(now_s)
        if self._told and self._span_s < 0.0:
            return
        self.known(cost)
        if self.value < math.inf:
            self._move(_GAIN_PER_S * self._gap_s * self._late_share)

    def known(self, cost: float) -> None:
        """Records a cost without counting an arrival."""
        self._costs.append(cost)
        self._since += 1
        if self._since >= _LOOK_EVERY or len(self._costs) < _LOOK_EVERY:
            self._since = 0
            if self._told and len(self._costs) < _LOOK_EVERY:
                return
            ordered = sorted(self._costs)
            self._low, self._high = ordered[int(_LOW * len(ordered))], ordered[int(_HIGH * len(ordered))]

    def known_all(self, costs: Sequence[float]) -> None:
        """As `known` for each cost. Only the newest ones matter; the others are left out, in whole steps."""
        left_out = max(0, len(costs) - 2 * _KEEP) // _LOOK_EVERY * _LOOK_EVERY
        for cost in costs[left_out:]:
            self.known(cost)

    def on_overdue(self, cost: float) -> None:
        """Lowers the threshold: a request of that cost has become too late while it waited in its turn."""
        # Arrivals at two moments at least are needed to know the rate, and so how much one request counts.
        if cost <= self.value and self._gaps:
            self.value = min(self.value, self._high)
            self._move(-_GAIN_PER_S * self._gap_s * (1.0 - self._late_share))

    def _keep_time(self, now_s: float) -> None:
        """Learns the mean time between arrivals. Requests that arrive at one moment share the time since the moment before."""
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
