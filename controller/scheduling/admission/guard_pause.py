"""When the TPOT guard of a queue pauses: it makes many requests late beside engines that could do all the work that comes. Pure.

The guard holds requests back so that those in flight keep their pace. Where a machine is slow by itself, that gains little: what is held
back becomes late, and then waits behind all that is in time. While the load leaves the engines so much room that a queue cannot grow, all
requests are better sent as they come.
"""

from collections.abc import Sequence
from math import inf

from hmas.controller.core.statistics.rate import Rate
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

PAUSE_S = 30.0
"""How long a pause lasts, and the least time between one that ended early and the next."""
SEQUENCES_MOST = 3.0
"""Sequences in flight on an instance that the load may be expected to come to in a pause. With more, the batch makes much of the pace. With
8, most requests that a pause sends on a steep engine miss their TPOT targets: 64 instead of 77 % of all are in time (`lab/benchmarks/
steep_engines.py`, 1.5/s at 40 ms). Where a pause gains, since a machine is slow by itself (`guard_study.py --phases`), fewer are expected,
and 3 and 8 are alike."""
CROWDED = 16
"""Sequences in flight on an instance beyond which a pause ends early: the expectation was wrong. With 16 expected and 24 present at most,
5 points fewer are in time on a steep engine at a target of 40 ms (`lab/benchmarks/steep_engines.py`), and as many on a machine that
changes its speed."""
LOAD_MOST = 0.8
"""Share of an engine's time that the load may take, by what a request costs it."""
LATE_LEAST = 0.03
"""Least share of the requests that have to become late."""
REQUESTS_LEAST = 8.0
"""How many requests have to have come lately."""
MEMORY_S = 10.0
"""Time constant in seconds over which it is counted what comes, and what becomes late."""
_RISE_BOUNDS = (0.04, 0.2)
"""Bounds of the share of the pace of a request alone that each further sequence is taken to add to it. Where a machine changes its speed,
the line of the pace takes its slowness for the batch's doing."""


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

    __slots__ = ("_late", "_outputs", "_prompts", "_requests", "_until_s", "active", "sequences")

    def __init__(self) -> None:
        self.active = False
        self.sequences = 0.0
        self._until_s = -inf
        self._requests, self._late = Rate(MEMORY_S), Rate(MEMORY_S)
        self._prompts, self._outputs = Rate(MEMORY_S, since_first=True), Rate(MEMORY_S, since_first=True)

    def asked(self, entry: QueueEntry, now_s: float) -> None:
        """Records that a request comes."""
        self._requests.add(1.0, now_s)
        self._prompts.add(entry.request.prompt_tokens, now_s)
        self._outputs.add(entry.estimates.output_tokens, now_s)

    def became_late(self, now_s: float) -> None:
        """Records that a request became late while the guard held the queue."""
        self._late.add(1.0, now_s)

    def lets_go(self, instance: Instance, *, late: bool) -> bool:
        """Whether a pause sends a request to the instance: a late one beside as many as are expected, others until it is crowded."""
        return self.active and instance.sequences <= (self.sequences if late else CROWDED)

    def look(self, instances: Sequence[Instance], now_s: float) -> None:
        """Begins or ends a pause; called once per tick. O(instances) in a pause and where requests are late, else O(1)."""
        if self.active:
            is_crowded = max((instance.sequences for instance in instances), default=0) > CROWDED
            if is_crowded or now_s >= self._until_s:
                self.active, self.sequences = False, 0.0
                self._until_s = now_s + PAUSE_S if is_crowded else now_s
            return
        rps = self._requests.per_s(now_s)
        if now_s < self._until_s or rps * MEMORY_S < REQUESTS_LEAST:
            return
        late_share = self._late.per_s(now_s) / rps
        sequences = self._expected(instances, late_share, now_s) if late_share > LATE_LEAST else inf
        if sequences <= SEQUENCES_MOST:
            self.active, self.sequences, self._until_s = True, sequences, now_s + PAUSE_S

    def _expected(self, instances: Sequence[Instance], late_share: float, now_s: float) -> float:
        """Most sequences that any instance would have in flight if each got its part of the load as it comes; infinite if it should not.

        By Little's law: n = rate x tokens x pace(n), with pace(n) = alone x (1 + rise x n), longer by the time that prompts take. On a
        steep engine, what is let go makes all others late: with a rise of 4 % for all, 15 instead of 55 % are in time near its capacity.
        """
        able = [instance for instance in instances if instance.available]
        prompt_tokens, output_tokens = (rate.per_s(now_s) / max(1, len(able)) for rate in (self._prompts, self._outputs))
        most = 0.0 if able else inf
        for instance in able:
            alone_ms = instance.pace.token_ms(1.0)
            if alone_ms is None:
                return inf
            decoding = alone_ms * output_tokens / 1000.0
            least, largest = _RISE_BOUNDS
            rise = min(largest, max(least, instance.pace.sequence_ms / alone_ms))
            # What prompts take is in proportion to their tokens, so those of a second take their share of the time.
            load = instance.pace.prefill_ms(round(prompt_tokens), inf) / 1000.0 + rise * decoding
            if load > LOAD_MOST or late_share < load * load:
                return inf
            most = max(most, decoding / (1.0 - load))
        return most
