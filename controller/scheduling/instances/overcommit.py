"""Decides when a request may join although the KV fence is full by forecast: once waiting costs more than a preemption would. Pure.

The fence books each request at its upper length. Most requests end before that; if the cache runs out all the same, the engine preempts one
request and computes it again. A preemption has a price, and so has waiting; both are measured. A request joins when it has waited for as
long as the preemptions caused by similar dispatches have cost (the ski rental rule: never more than twice the price of the better choice).
As under the TPOT guard, it also joins at the last moment for its TTFT target while overdue requests are served in the end. An
engine that has not preempted after such a dispatch has no price: without a measurement nothing is held back.
"""

_DECAY = 0.97
"""Factor by which each dispatch beyond the fence lowers the weight of earlier ones."""


class Preemptions:
    """Estimates how many preemptions a dispatch beyond the fence causes on one instance.

    Attributes:
        waiting: Sequences that the engine has preempted and not taken up again, by its last report: at most, others may wait there too.
        unreported_tokens: Upper tokens sent beyond the fence since the engine's last report, so that free cache in a report is not used
            twice.
    """

    __slots__ = ("_beyond", "_concerned", "_in_flight", "_preempted", "_total", "unreported_tokens", "waiting")

    def __init__(self) -> None:
        self._beyond = 0.0
        self._preempted = 0.0
        self._total: int | None = None
        self._in_flight: set[str] = set()
        self._concerned = False
        self.waiting = 0
        self.unreported_tokens = 0

    def dispatched(self, request_id: str, tokens: int) -> None:
        """Records that a request with `tokens` KV tokens at its upper length was dispatched beyond the fence."""
        self._in_flight.add(request_id)
        self._concerned = True
        self.unreported_tokens += tokens
        self._beyond = 1.0 + _DECAY * self._beyond
        self._preempted *= _DECAY

    def ended(self, request_id: str) -> None:
        """Records that a request is no longer in flight; one that was dispatched within the fence is ignored."""
        self._in_flight.discard(request_id)

    def counted(self, total: int, waiting: int = 0) -> None:
        """Takes a healthy engine's count of preemptions since it started, and of the sequences that wait inside it.

        A count that falls means that the engine was restarted.
        """
        preempted = 0 if self._total is None else total - self._total
        self.waiting = max(0, min(waiting, self.waiting + preempted))
        # A request takes cache from others only while it is in flight. Preemptions at other times have other causes, and would add up to a
        # price that no dispatch has caused.
        if preempted > 0 and self._concerned:
            self._preempted += preempted
        self._total = total
        self._concerned = bool(self._in_flight)
        self.unreported_tokens = 0

    @property
    def per_dispatch(self) -> float:
        """Recent preemptions per dispatch beyond the fence, with one dispatch without a preemption added to the count."""
        return self._preempted / (1.0 + self._beyond)

    def price_s(self, redone_ms: float, in_flight: int) -> float:
        """The cost of a dispatch beyond the fence, in seconds of requests' time.

        Args:
            redone_ms: Time to compute a preempted request's tokens again.
            in_flight: Requests that are delayed meanwhile.
        """
        return self.per_dispatch * redone_ms / 1000.0 * max(1, in_flight)
