"""When the TPOT guard of a queue pauses: it makes many requests late beside engines that could do all the work that comes. Pure.

The guard holds requests back so that those in flight keep their pace. Where a machine is slow by itself, that gains little: what is held
back becomes late, and then waits behind all that is in time. While the load leaves the engines so much room that a queue cannot grow, all
requests are better sent as they come.
"""

from collections.abc import Sequence
from math import exp

from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

PAUSE_S = 30.0
"""How long a pause lasts, and the least time between one that ended early and the next."""
SEQUENCES_MOST = 16.0
"""Sequences in flight on an instance that the load may be expected to come to in a pause."""
CROWDED = 24
"""Sequences in flight on an instance beyond which a pause ends early: the expectation was wrong."""
LOAD_MOST = 0.8
"""Share of an engine's time that the load may take, by what a request costs it."""
LATE_LEAST = 0.03
"""Least share of the requests that have to become late."""
_SPAN_S, _SPAN_LEAST_S = 10.0, 1.0
"""Time over which arrivals are forgotten to 1/e, and the least that they are taken to be of."""
_REQUESTS_LEAST, _LULL = 8.0, 0.1
"""How many have to have come; and at how few of those before a request counts as the first one."""
_RISE = 0.04
"""Share of the pace of a request alone that each further sequence adds to it. Engines that were measured have 0.5 to 10 %; the line of the
pace takes a machine's slowness for the batch's doing."""


class GuardPause:
    """The pauses of one queue.

    With `u` the share of an engine's time that the load takes, a pause begins once the share of requests that became late while the guard
    held the queue is more than `u` squared: the less load there is, the less the batch has to do with the pace. With `u` to the third power
    or a fixed share of 5 %, long prompts and tight targets lose 2 to 10 points in `lab/benchmarks/guard_study.py`; with a fixed share of
    30 %, the P95 TTFT on machines of changing speed is half as long again.

    Attributes:
        active: Whether the guard pauses now.
        sequences: How many sequences an instance is expected to have in flight in this pause; 0 in none.
    """

    __slots__ = (
        "_at_s",
        "_began_s",
        "_late",
        "_prompt_tokens",
        "_requests",
        "_tokens",
        "_ttft_ms",
        "_until_s",
        "active",
        "sequences",
    )

    def __init__(self) -> None:
        self.active = False
        self.sequences = 0.0
        self._until_s = self._at_s = self._began_s = float("-inf")
        self._requests = self._late = self._tokens = self._prompt_tokens = 0.0
        self._ttft_ms = 0.0

    def asked(self, entry: QueueEntry, now_s: float) -> None:
        """Records that a request comes."""
        self._forget(now_s)
        if self._requests < _LULL:
            self._began_s = now_s
        self._requests += 1.0
        self._prompt_tokens += entry.request.prompt_tokens
        self._tokens += entry.estimates.output_tokens * entry.request.sequences
        self._ttft_ms = entry.estimates.ttft_ms

    def became_late(self, now_s: float) -> None:
        """Records that a request became late while the guard held the queue."""
        self._forget(now_s)
        self._late += 1.0

    def look(self, instances: Sequence[Instance], now_s: float) -> None:
        """Begins or ends a pause; called once per tick. O(instances) in a pause and where requests are late, else O(1)."""
        if self.active:
            is_crowded = max((instance.sequences for instance in instances), default=0) > CROWDED
            if is_crowded or now_s >= self._until_s:
                self.active, self.sequences = False, 0.0
                self._until_s = now_s + PAUSE_S if is_crowded else now_s
        elif now_s >= self._until_s and self._requests >= _REQUESTS_LEAST and self._late > LATE_LEAST * self._requests:
            self._forget(now_s)
            sequences = self._expected([instance for instance in instances if instance.available], now_s)
            if 0.0 < sequences <= SEQUENCES_MOST:
                self.active, self.sequences, self._until_s = True, sequences, now_s + PAUSE_S

    def _expected(self, instances: Sequence[Instance], now_s: float) -> float:
        """Most sequences that any instance would have in flight if each got its part of the load as it comes; 0 if it should not.

        By Little's law: n = rate x tokens x pace(n), with pace(n) = alone x (1 + rise x n), longer by the time that prompts take.
        """
        if not instances:
            return 0.0
        span_s = max(_SPAN_LEAST_S, _SPAN_S * (1.0 - exp((self._began_s - now_s) / _SPAN_S)))
        rps = self._requests / span_s / len(instances)
        tokens, prompt_tokens = self._tokens / self._requests, round(self._prompt_tokens / self._requests)
        most = 0.0
        for instance in instances:
            alone_ms = instance.pace.token_ms(1.0)
            if alone_ms is None:
                return 0.0
            decode_s, prefill_s = alone_ms * tokens / 1000.0, instance.pace.prefill_ms(prompt_tokens, self._ttft_ms) / 1000.0
            load = rps * (prefill_s + _RISE * decode_s)
            if load > LOAD_MOST or self._late < load * load * self._requests:
                return 0.0
            most = max(most, rps * decode_s / (1.0 - load))
        return most

    def _forget(self, now_s: float) -> None:
        left = exp(min(0.0, (self._at_s - now_s) / _SPAN_S))
        self._at_s = max(self._at_s, now_s)
        self._requests *= left
        self._late *= left
        self._tokens *= left
        self._prompt_tokens *= left
