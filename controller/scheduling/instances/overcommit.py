"""Decides when a request may join although the KV fence is full by forecast: once waiting costs more than a preemption would. Pure.

The fence books each request at its upper length. Most requests end before that; if the cache runs out all the same, the engine preempts one
request and computes it again. A preemption has a price, and so has waiting; both are measured. A request joins when it has waited for as
long as the preemptions caused by similar dispatches have cost (the ski rental rule: never more than twice the price of the better choice).
As under the TPOT guard, it also joins at the last moment for its TTFT target while overdue requests are served in the end. Until
preemptions have been counted a prior is used, which rises with the share of the cache that the engine reports in use: below half of it,
none are expected.
"""

_DECAY = 0.97
"""Factor by which each dispatch beyond the fence lowers the weight of earlier ones."""
_PRIOR = 0.5
"""Preemptions expected per dispatch beyond the fence when the cache is nearly full, until there are some to count."""
_PRIOR_FROM = 0.5
"""Share of the cache in use up to which no preemption is expected."""
_PRIOR_TO = 0.9
"""Share of the cache in use from which on `_PRIOR` preemptions are expected; between the two bounds the number rises linearly."""


class Preemptions:
    """Estimates how many preemptions a dispatch beyond the fence causes on one instance.

    Attributes:
        unreported_tokens: Upper tokens sent beyond the fence since the engine's last report, so that free cache in a report is not used
            twice.
    """

    __slots__ = ("_beyond", "_preempted", "_total", "unreported_tokens")

    def __init__(self) -> None:
        self._beyond = 0.0
        self._preempted = 0.0
        self._total: int | None = None
        self.unreported_tokens = 0

    def dispatched(self, tokens: int) -> None:
        """Records that a request with `tokens` KV tokens at its upper length was dispatched beyond the fence."""
        self.unreported_tokens += tokens
        self._beyond = 1.0 + _DECAY * self._beyond
        self._preempted *= _DECAY

    def counted(self, total: int) -> None:
        """Takes the engine's count of preemptions since it started; a count that falls means that the engine was restarted."""
        if self._total is not None and total > self._total and self._beyond:
            self._preempted += total - self._total
        self._total = total
        self.unreported_tokens = 0

    def per_dispatch(self, usage: float) -> float:
        """Expected preemptions per dispatch: the recent count, together with one virtual dispatch at the prior.

        Args:
            usage: Share of the cache in use, 0 to 1.
        """
        prior = _PRIOR * max(0.0, min(1.0, (usage - _PRIOR_FROM) / (_PRIOR_TO - _PRIOR_FROM)))
        return (prior + self._preempted) / (1.0 + self._beyond)

    def price_s(self, redone_ms: float, in_flight: int, usage: float) -> float:
        """The cost of a dispatch beyond the fence, in seconds of requests' time.

        Args:
            redone_ms: Time to compute a preempted request's tokens again.
            in_flight: Requests that are delayed meanwhile.
            usage: Share of the cache in use, 0 to 1.
        """
        return self.per_dispatch(usage) * redone_ms / 1000.0 * max(1, in_flight)
