"""When a waiting request is too late: whether its first token would still be in time if it were sent now. Pure.

Under overload, deadline order dispatches each request at the last moment, so a small error in "too late" wastes the prefill: 30 ms too
late, and a third of what is prefilled misses its target by those 30 ms. So the limit follows what instances have shown:
`FirstTokenOverhead` is what a first token takes beyond the prompt's own prefill (the step that is under way, the prompts that were sent
just before it).
"""

import math

from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

LEAST = 16
"""Requests after which what an instance has shown is believed."""
MOST = 0.25
"""Share of its TTFT target at which a request counts as too late at the earliest for what instances have shown.

A quantile of the time to a first token may pass a tight target itself. Drawn there, all requests of that target would be too late as
they come.
"""
_LAST_CHANCE_MS, _LAST_CHANCE_SHARE = 100.0, 0.5
"""How long before it is too late for its TTFT target a request has its last chance: one tick, a share of a shorter target at most."""
_STEP = 0.1
_LEAST_MS = 10.0


class FirstTokenOverhead:
    """Online quantile of what a first token takes beyond the prompt's own prefill, on one instance.

    In the logarithm, a step up by a tenth of the quantile for a value above it, and one down by a tenth of the rest for any other. Whatever
    comes and in whatever order, the share of values above it is off the wanted one after n of them by at most 10 (R + 0.1) / n, with R the
    range of the logarithms: adaptive conformal inference (Gibbs and Candès 2021, proposition 4.1) on the score itself.

    Args:
        quantile: Above 0 to below 1.
        ms: What is known of it beforehand, 0 for nothing.

    Attributes:
        ms: The quantile in milliseconds, None before 16 values.
    """

    __slots__ = ("_log_ms", "_quantile", "_seen", "ms")

    def __init__(self, quantile: float, ms: float = 0.0) -> None:
        self.ms: float | None = ms if ms > 0.0 else None
        self._quantile = quantile
        self._seen = LEAST if ms > 0.0 else 0
        self._log_ms = math.log(max(_LEAST_MS, ms))

    def shown(self, beyond_ms: float) -> None:
        """A first token took so much longer than the prompt's own prefill; what is below 10 ms counts as 10."""
        value = math.log(max(_LEAST_MS, beyond_ms))
        if not self._seen:
            self._log_ms = value
        elif value > self._log_ms:
            self._log_ms += _STEP * self._quantile
        else:
            self._log_ms -= _STEP * (1.0 - self._quantile)
        self._seen += 1
        if self._seen >= LEAST:
            self.ms = math.exp(self._log_ms)


def needed_ms(least_ms: float, shown_ms: float | None, target_ms: float) -> float:
    """What must be left before a TTFT deadline for a request to count as in time.

    Args:
        least_ms: What any first token takes.
        shown_ms: Within what it has mostly come (`FirstTokenOverhead` and the prompt's own prefill), None where nothing is known.
        target_ms: The TTFT target.
    """
    return least_ms if shown_ms is None else max(least_ms, min(shown_ms, MOST * target_ms))


def first_look_s(deadline_s: float, least_ms: float, target_ms: float) -> float:
    """Before this a request cannot count as too late, whatever instances show meanwhile."""
    return deadline_s - max(least_ms, MOST * target_ms) / 1000.0


def is_last_chance(entry: QueueEntry, shown_ms: float | None, now_s: float) -> bool:
    """Whether a request that is in time now, and does not go, is too late at the next tick; `shown_ms` as in `needed_ms`."""
    target_ms = entry.estimates.slo.ttft_ms
    left_ms = 1000.0 * (entry.ttft_deadline_s - now_s) - needed_ms(0.0, shown_ms, target_ms)
    return 0.0 <= left_ms <= min(_LAST_CHANCE_MS, _LAST_CHANCE_SHARE * target_ms)
