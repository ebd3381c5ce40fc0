"""The headers of every answer: the request's id, queue and instance, and the tenant's quotas as OpenAI's rate limit headers. Pure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hmas.controller.scheduling.admission.quotas import RateState
from hmas.controller.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from hmas.controller.gateway.requests.active_request import ActiveRequest


def response_headers(live: "ActiveRequest", scheduler: Scheduler, now_s: float, overhead_s: float | None) -> dict[str, str]:
    """Returns the headers of an answer to a request.

    Args:
        live: The request.
        scheduler: Knows the active policy, the queue and the tenant's quotas.
        now_s: The time.
        overhead_s: Seconds that the gateway itself took, None while the engine has not answered.
    """
    limit = scheduler.settings.queue_limit
    headers = {
        "x-request-id": live.client_request_id,
        "x-hmas-policy": scheduler.policy,
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(max(0, limit - scheduler.queued)),
    }
    if live.dispatched_s:
        headers["x-hmas-queue-ms"] = f"{(live.dispatched_s - live.request.arrival_s - live.failed_s) * 1000.0:.2f}"
        if live.instance:
            headers["x-hmas-instance"] = live.instance
        if overhead_s is not None:
            headers["x-hmas-overhead-ms"] = f"{overhead_s * 1000.0:.3f}"
    if live.served_instead:
        headers["x-hmas-served-model"] = live.served_instead
    if live.raised is not None:
        headers.update(live.raised)
    if rates := scheduler.rates(live.request.tenant, now_s):
        headers.update(ratelimit_headers(rates))
    return headers


def ratelimit_headers(rates: Mapping[str, RateState]) -> dict[str, str]:
    """Returns `x-ratelimit-limit-*`, `-remaining-*` and `-reset-*` for each quota by name (`tokens`, `requests`); empty without any.

    Reset is the time until the whole quota is free again, in OpenAI's format: `1m12.5s`, `850ms`.
    """
    headers = {}
    for what, rate in rates.items():
        headers[f"x-ratelimit-limit-{what}"] = str(rate.limit)
        headers[f"x-ratelimit-remaining-{what}"] = str(rate.remaining)
        headers[f"x-ratelimit-reset-{what}"] = _span(rate.reset_s)
    return headers


def _span(span_s: float) -> str:
    """Formats hours, minutes and seconds, rounded up so that no client retries too early."""
    if span_s < 1.0:
        return f"{-int(-span_s * 1000.0 // 1)}ms" if span_s > 0.0 else "0s"
    tenths = -int(-span_s * 10.0 // 1)
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest / 10:g}s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + seconds
