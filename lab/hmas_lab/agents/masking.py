"""Latency masking (H-MAS E.4, Fig. 12): which requests were dispatched before the agents' answer came. Pure.

No request waits for an answer, so masking costs no request any time. What it decides is whether the answer can change anything: a request
that is sent at once, or that waits for less than the answer takes, is dispatched on the gateway's own estimates.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from hmas.controller.observability.defaults import AGENTS, DispatchedOnDefaults
from hmas.loadgen.results import Result

MASKING = ("at_once", "before_answer", "masked")
"""Shares of dispatched requests: sent at once; sent after a wait that was shorter than the answer took; sent with the answer."""


def masking(results: Sequence[Result], *, warmup_s: float, answer_s: float) -> dict[str, float]:
    """The shares of `MASKING` over the requests that arrived after the warm-up, by the gateway's own counters; empty without a dispatch.

    A request that was sent at once counts as one that nobody was asked about, as the gateway has it by default (`agents.ask: waiting`).

    Args:
        results: Of a run; how long each waited before its dispatch is its `queue_ms`.
        warmup_s: Arrivals before it are left out.
        answer_s: Time from an arrival to the agents' answer, the same for all.
    """
    counted = DispatchedOnDefaults(AGENTS, CollectorRegistry())
    for result in results:
        if result.at_s >= warmup_s and result.queue_ms >= 0.0:
            came = result.queue_ms >= 1000.0 * answer_s
            counted.count(result.at_s + result.queue_ms / 1000.0, asked=result.queue_ms > 0.0, features=came, cost=came)
    if not counted.dispatched:
        return {}
    at_once, late = (count / counted.dispatched for count in (counted.unasked, counted.late["perception"]))
    return dict(zip(MASKING, (at_once, late, 1.0 - at_once - late), strict=True))
