"""A tenant's quotas as OpenAI's rate limit headers."""

from collections.abc import Mapping

from hmas.controller.scheduling.admission.quotas import RateState


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
