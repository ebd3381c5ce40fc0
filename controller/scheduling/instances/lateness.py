"""Decides when a waiting request is too late: its first token would miss the target even if it were sent now. Pure.

Under overload, deadline order dispatches each request at the last moment, so a small error in this limit wastes prefills: if the limit is
30 ms too late, a third of the requests that are prefilled miss their target by those 30 ms. So the limit follows what instances have shown:
`FirstTokenOverhead` is what a first token takes beyond the prompt's own prefill (the step that is running, and the prompts that were sent
just before it).
"""

import math

from hmas.controller.core.statistics.quantiles import tracked
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

LEAST = 16
"""Requests after which the measurements of an instance are used."""
MOST = 0.25
"""Largest share of its TTFT target that measurements of instances may require to be left.

A quantile of the time to a first token may exceed a tight target itself. Without this bound, all requests with that target would count as
too late on arrival.
"""
_LEAST_CHANCE_MS = 100.0
"""Least length of the last chance before a request is too late for its TTFT target: one tick."""
_LONG_CHANCE_MS, _CHANCE_SHARE = 200.0, 0.15
"""Length of the last chance where the TTFT target leaves room for it, and its largest share of the target. First tokens come within the
usual time in half of the cases only: of chats of a real run on a small model, whose first token takes 0.1 to 0.6 s, 0.3 points more are in
time in simulation than with a tick alone, and as many with 300 ms; with 500 ms all is as before."""
_STEP = 0.1
_LEAST_MS = 10.0


class FirstTokenOverhead:
    """Online quantile of what a first token takes beyond the prompt's own prefill, on one instance.

    The quantile is tracked in the logarithm (`quantiles.tracked`): in any order of n values, the share above it differs from the wanted
    share by at most 10 (R + 0.1) / n, where R is the range of the logarithms.

    Args:
        quantile: The quantile level, above 0 and below 1.
        ms: A value that is known beforehand, 0 for none.

    Attributes:
        ms: The quantile in milliseconds, None before 16 values.
        log_ms: Its logarithm, from the first value on.
    """

    __slots__ = ("_quantile", "_seen", "log_ms", "ms")

    def __init__(self, quantile: float, ms: float = 0.0) -> None:
        self.ms: float | None = ms if ms > 0.0 else None
        self._quantile = quantile
        self._seen = LEAST if ms > 0.0 else 0
        self.log_ms = math.log(max(_LEAST_MS, ms))

    def shown(self, beyond_ms: float) -> None:
        """Records that a first token took `beyond_ms` longer than the prompt's own prefill; values below 10 ms count as 10."""
        value = math.log(max(_LEAST_MS, beyond_ms))
        if not self._seen:
            self.log_ms = value
        else:
            self.log_ms = tracked(self.log_ms, self._quantile, _STEP, 1.0 if value <= self.log_ms else 0.0)
        self._seen += 1
        if self._seen >= LEAST:
            self.ms = math.exp(self.log_ms)


def needed_ms(least_ms: float, shown_ms: float | None, target_ms: float) -> float:
    """Time that must be left before a TTFT deadline for a request to count as in time.

    Args:
        least_ms: The least time that a first token takes.
        shown_ms: Time within which it has usually come (`FirstTokenOverhead` plus the prompt's own prefill), None if nothing is known.
        target_ms: The TTFT target.
    """
    return least_ms if shown_ms is None else max(least_ms, min(shown_ms, MOST * target_ms))


def first_look_s(deadline_s: float, least_ms: float, target_ms: float) -> float:
    """The earliest time at which a request can count as too late, whatever the instances show until then."""
    return deadline_s - max(least_ms, MOST * target_ms) / 1000.0


def last_chance_ms(target_ms: float) -> float:
    """How long before a request with this TTFT target is too late its last chance begins."""
    return max(_LEAST_CHANCE_MS, min(_LONG_CHANCE_MS, _CHANCE_SHARE * target_ms))


def is_last_chance(entry: QueueEntry, shown_ms: float | None, now_s: float) -> bool:
    """Whether a request that is in time now is about to be too late if it is not dispatched; `shown_ms` as in `needed_ms`."""
    target_ms = entry.estimates.slo.ttft_ms
    left_ms = 1000.0 * (entry.ttft_deadline_s - now_s) - needed_ms(0.0, shown_ms, target_ms)
    return 0.0 <= left_ms <= last_chance_ms(target_ms)
