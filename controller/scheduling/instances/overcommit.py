"""When a request may join although the KV fence is full by forecast: once to hold it costs more than a preemption would. Pure.

The fence books each request at the upper length that it may come to. Most end before that, and an engine that runs out of cache all the
same computes one request again: that has a price, and so has waiting. Both are measured. A request goes when it has waited for as long as
the preemptions that its like has brought about have cost (the rule of ski rental: never more than twice the price of the better choice),
and, as under the TPOT guard, at the last moment for its TTFT target while overdue requests are served all the same. Until preemptions
have been counted a prior stands for them, which rises with the cache that the engine reports in use: none are expected below half of it.
"""

_DECAY = 0.97
"""By which each dispatch beyond the fence lowers the weight of those before it."""
_PRIOR = 0.5
"""Preemptions that one dispatch beyond the fence brings about where the cache is all but full, until there are some to count."""
_PRIOR_FROM = 0.5
"""Share of the cache in use up to which none are expected."""
_PRIOR_TO = 0.9
"""Share of the cache in use from which on `_PRIOR` are expected; between the two the number rises in proportion."""


class Preemptions:
    """How many preemptions each dispatch beyond the fence brings about, on one instance.

    Attributes:
        unreported_tokens: What was sent beyond the fence since the engine's last report may come to, so that a report is not spent twice.
    """

    __slots__ = ("_beyond", "_preempted", "_total", "unreported_tokens")

    def __init__(self) -> None:
        self._beyond = 0.0
        self._preempted = 0.0
        self._total: int | None = None
        self.unreported_tokens = 0

    def dispatched(self, tokens: int) -> None:
        """A request of so many tokens at its upper length went to the instance beyond its fence."""
        self.unreported_tokens += tokens
        self._beyond = 1.0 + _DECAY * self._beyond
        self._preempted *= _DECAY

    def counted(self, total: int) -> None:
        """The engine reports: it has preempted so many requests since it started; one that counts anew has been started anew."""
        if self._total is not None and total > self._total and self._beyond:
            self._preempted += total - self._total
        self._total = total
        self.unreported_tokens = 0

    def per_dispatch(self, usage: float) -> float:
        """Preemptions for each dispatch: over the newest ones, with one beside them of which the prior is expected.

        Args:
            usage: Share of the cache in use, 0 to 1.
        """
        prior = _PRIOR * max(0.0, min(1.0, (usage - _PRIOR_FROM) / (_PRIOR_TO - _PRIOR_FROM)))
        return (prior + self._preempted) / (1.0 + self._beyond)

    def price_s(self, redone_ms: float, in_flight: int, usage: float) -> float:
        """What a dispatch beyond the fence costs, in seconds of requests' time.

        Args:
            redone_ms: How long it takes to compute a preempted request's tokens again.
            in_flight: Requests that stand still meanwhile.
            usage: Share of the cache in use, 0 to 1.
        """
        return self.per_dispatch(usage) * redone_ms / 1000.0 * max(1, in_flight)
