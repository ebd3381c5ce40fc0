"""When a request may join although the KV fence is full by forecast: once to hold it costs more than a preemption would. Pure.

The fence books each request at the upper length that it may come to. Most end before that, and an engine that runs out of cache all the
same computes one request again: that has a price, and so has waiting. Both are measured. A request goes when it has waited for as long as
the preemptions that its like has brought about have cost (the rule of ski rental: never more than twice the price of the better choice),
and, as under the TPOT guard, at the last moment for its TTFT target while overdue requests are served all the same. An engine that reports
less than half of its cache in use has brought about no preemption yet: there only those that were counted have a price.
"""

_DECAY = 0.97
"""By which each dispatch beyond the fence lowers the weight of those before it."""
_PRIOR = 0.5
"""Preemptions that one dispatch beyond the fence brings about, until there are some to count."""


class Preemptions:
    """How many preemptions each dispatch beyond the fence brings about, on one instance.

    Attributes:
        per_dispatch: That number, 0 or more: over the newest dispatches, with one that brought about half a preemption beside them.
        counted_per_dispatch: The same over the dispatches alone; 0 before there are any.
        unreported_tokens: What was sent beyond the fence since the engine's last report may come to, so that a report is not spent twice.
    """

    __slots__ = ("_beyond", "_preempted", "_total", "counted_per_dispatch", "per_dispatch", "unreported_tokens")

    def __init__(self) -> None:
        self._beyond = 0.0
        self._preempted = 0.0
        self._total: int | None = None
        self.per_dispatch = _PRIOR
        self.counted_per_dispatch = 0.0
        self.unreported_tokens = 0

    def dispatched(self, tokens: int) -> None:
        """A request of so many tokens at its upper length went to the instance beyond its fence."""
        self.unreported_tokens += tokens
        self._beyond = 1.0 + _DECAY * self._beyond
        self._preempted *= _DECAY
        self._weigh()

    def counted(self, total: int) -> None:
        """The engine reports: it has preempted so many requests since it started; one that counts anew has been started anew."""
        if self._total is not None and total > self._total and self._beyond:
            self._preempted += total - self._total
            self._weigh()
        self._total = total
        self.unreported_tokens = 0

    def price_s(self, redone_ms: float, in_flight: int, *, counted: bool = False) -> float:
        """What a dispatch beyond the fence costs, in seconds of requests' time.

        Args:
            redone_ms: How long it takes to compute a preempted request's tokens again.
            in_flight: Requests that stand still meanwhile.
            counted: Whether only preemptions that were counted have a price.
        """
        per_dispatch = self.counted_per_dispatch if counted else self.per_dispatch
        return per_dispatch * redone_ms / 1000.0 * max(1, in_flight)

    def _weigh(self) -> None:
        self.per_dispatch = (_PRIOR + self._preempted) / (1.0 + self._beyond)
        self.counted_per_dispatch = self._preempted / self._beyond if self._beyond else 0.0
