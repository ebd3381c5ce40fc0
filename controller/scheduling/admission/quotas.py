"""What a tenant may take: tokens and requests by rate, slots by share."""

from collections.abc import Mapping, Sequence

import msgspec

from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.admission.token_bucket import TokenBucket
from hmas.controller.scheduling.instances.instance import Instance

_MINUTE_S = 60.0


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one tenant; the defaults limit nothing.

    Attributes:
        tokens_per_minute: Prompt and output tokens per minute, 0 for no quota.
        burst_tokens: Tokens that may be used at once after a pause, 0 for a minute's worth.
        requests_per_minute: Requests taken in per minute, and at once after a pause; 0 for no quota.
        concurrency_share: Greatest share of the fleet's windows that it may hold while others wait, more than 0 to 1; 1 for no limit.
        max_running: Most requests it may have in flight in any case, 0 for no limit.
    """

    tokens_per_minute: int = 0
    burst_tokens: int = 0
    requests_per_minute: int = 0
    concurrency_share: float = 1.0
    max_running: int = 0

    @property
    def bounded(self) -> bool:
        """Whether it limits slots."""
        return self.concurrency_share < 1.0 or self.max_running > 0

    @property
    def metered(self) -> bool:
        """Whether it limits a rate."""
        return self.tokens_per_minute > 0 or self.requests_per_minute > 0


NO_LIMITS = TenantLimits()
"""Of a tenant of whom nothing is said."""


class RateState(msgspec.Struct, frozen=True, kw_only=True):
    """One quota as a client is told it: limit per minute, what is left now, and seconds until it is full again."""

    limit: int
    remaining: int
    reset_s: float


class OverQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Why a tenant has to wait: which quota (`tokens` or `requests`), its limit per minute, and when it will hold enough."""

    what: str
    limit: int
    wait_s: float


class _Meter:
    """The two buckets of one tenant; one that is not limited has none."""

    __slots__ = ("requests", "tokens")

    def __init__(self, limits: TenantLimits, now_s: float) -> None:
        self.tokens: TokenBucket | None = None
        self.requests: TokenBucket | None = None
        self.adjust(limits, now_s)

    def adjust(self, limits: TenantLimits, now_s: float) -> None:
        """Takes the limits as they are now; a bucket that there was stays as full as it was, a new one starts full."""
        self.tokens = _bucket(self.tokens, limits.tokens_per_minute, limits.burst_tokens, now_s)
        self.requests = _bucket(self.requests, limits.requests_per_minute, 0, now_s)


def _bucket(before: TokenBucket | None, per_minute: int, burst: int, now_s: float) -> TokenBucket | None:
    """The bucket of a rate, None where there is none; without a burst of its own it holds a minute's worth."""
    if not per_minute:
        return None
    capacity, per_s = burst or per_minute, per_minute / _MINUTE_S
    if before is None:
        return TokenBucket(capacity, per_s, now_s)
    before.resize(capacity, per_s, now_s)
    return before


class Tenancy:
    """The accounts of all tenants. O(1) a request; nothing is kept of tenants without limits but how many they have in flight.

    A request is charged its prompt and predicted output when it is taken in, and the difference to what it really took when it
    ends; one that never ran costs nothing but its place among the requests per minute. So what is in flight counts, and a
    prediction that is wrong is put right within one request's life.

    Attributes:
        bounded: Tenants whose slots are limited.
        metered: Tenants that have a quota.
        running: Requests in flight by tenant, of those only.
        version: Grows whenever the answer of `closed` may have changed.
    """

    __slots__ = ("_charged", "_instances", "_limits", "_meters", "_windows", "bounded", "metered", "running", "version")

    def __init__(self, limits: Mapping[str, TenantLimits], instances: Sequence[Instance]) -> None:
        self._limits = dict(limits)
        self._instances = tuple(instances)
        self._meters: dict[str, _Meter] = {}
        self._charged: dict[str, float] = {}
        self._windows = sum(instance.n_run for instance in self._instances)
        self.bounded = frozenset(name for name, one in self._limits.items() if one.bounded)
        self.metered = frozenset(name for name, one in self._limits.items() if one.metered)
        self.running: dict[str, int] = dict.fromkeys(sorted(self.bounded), 0)
        self.version = 0

    def limits(self, tenant: str) -> TenantLimits:
        """What holds for a tenant."""
        return self._limits.get(tenant, NO_LIMITS)

    def set_limits(self, tenant: str, limits: TenantLimits, running: int, now_s: float) -> bool:
        """Puts other limits in force. Quotas hold from the next request on; what is in flight was charged, or not, when it came.

        Args:
            tenant: Whose.
            limits: What holds from now on, `NO_LIMITS` for none.
            running: How many it has in flight.
            now_s: When.

        Returns:
            Whether its slots were limited and are not any more, or are now and were not: those that wait have to be sorted anew then.
        """
        was_bounded = tenant in self.bounded
        if limits == NO_LIMITS:
            self._limits.pop(tenant, None)
        else:
            self._limits[tenant] = limits
        self.bounded = frozenset(name for name, one in self._limits.items() if one.bounded)
        self.metered = frozenset(name for name, one in self._limits.items() if one.metered)
        if not limits.bounded:
            self.running.pop(tenant, None)
        elif not was_bounded:
            self.running[tenant] = running
        meter = self._meters.get(tenant)
        if meter is not None and limits.metered:
            meter.adjust(limits, now_s)
        elif meter is not None:
            del self._meters[tenant]
        self.version += 1
        return was_bounded != limits.bounded

    # -- rates ------------------------------------------------------------------------------------------------------------

    def over_quota(self, request: Request, estimates: Estimates, now_s: float) -> OverQuota | None:
        """Which of its tenant's quotas does not let this request in now, the longer wait of the two; None where both do."""
        meter = self._meter(request.tenant, now_s)
        if meter is None:
            return None
        limits = self._limits[request.tenant]
        waits: list[OverQuota] = []
        if meter.tokens is not None:
            wait_s = meter.tokens.wait_s(expected_tokens(request, estimates), now_s)
            waits.append(OverQuota(what="tokens", limit=limits.tokens_per_minute, wait_s=wait_s))
        if meter.requests is not None:
            waits.append(OverQuota(what="requests", limit=limits.requests_per_minute, wait_s=meter.requests.wait_s(1.0, now_s)))
        longest = max(waits, key=lambda one: one.wait_s)
        return longest if longest.wait_s > 0.0 else None

    def charge(self, request: Request, estimates: Estimates, now_s: float) -> None:
        """Charges a request that is taken in."""
        meter = self._meter(request.tenant, now_s)
        if meter is None:
            return
        if meter.requests is not None:
            meter.requests.take(1.0, now_s)
        if meter.tokens is not None:
            expected = expected_tokens(request, estimates)
            meter.tokens.take(expected, now_s)
            self._charged[request.id] = expected

    def settle(self, request: Request, tokens: int, now_s: float) -> None:
        """A request has ended and took so many tokens, 0 where it never ran: gives back what it was charged too much, or takes the rest."""
        # Its quota may have come or gone since.
        expected = self._charged.pop(request.id, None) if self._charged else None
        meter = self._meters.get(request.tenant)
        if expected is not None and meter is not None and meter.tokens is not None:
            meter.tokens.take(tokens - expected, now_s)

    def rates(self, tenant: str, now_s: float) -> dict[str, RateState]:
        """Its quotas as clients are told them, by `tokens` and `requests`; empty where it has none."""
        meter = self._meter(tenant, now_s)
        if meter is None:
            return {}
        limits = self._limits[tenant]
        told = {}
        for what, bucket, limit in (
            ("tokens", meter.tokens, limits.tokens_per_minute),
            ("requests", meter.requests, limits.requests_per_minute),
        ):
            if bucket is not None:
                left = int(max(0.0, bucket.level(now_s)))
                told[what] = RateState(limit=limit, remaining=left, reset_s=bucket.wait_s(bucket.capacity, now_s))
        return told

    def _meter(self, tenant: str, now_s: float) -> _Meter | None:
        meter = self._meters.get(tenant)
        if meter is None and (limits := self._limits.get(tenant)) is not None and limits.metered:
            meter = self._meters[tenant] = _Meter(limits, now_s)
        return meter

    # -- slots ------------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Takes the fleet's windows as they are now. O(instances)."""
        windows = sum(instance.n_run for instance in self._instances if instance.available)
        if windows != self._windows:
            self._windows = windows
            self.version += 1

    def started(self, tenant: str) -> None:
        """One of its requests has been dispatched."""
        if tenant in self.bounded:
            self.running[tenant] += 1
            self.version += 1

    def stopped(self, tenant: str) -> None:
        """One of its requests is no longer in flight."""
        if tenant in self.bounded:
            self.running[tenant] -= 1
            self.version += 1

    def fill(self, tenant: str) -> float:
        """What a tenant holds over its share of the windows: 1 or more at its share. One slot is always its own."""
        share = self.limits(tenant).concurrency_share
        if share >= 1.0:
            return 0.0
        return self.running[tenant] / max(1, int(share * self._windows + 1e-9))

    def capped(self, tenant: str) -> bool:
        """Whether a tenant is at its absolute limit: nothing of it may go, whoever else waits."""
        most = self.limits(tenant).max_running
        return most > 0 and self.running[tenant] >= most

    def closed(self, tenant: str) -> bool:
        """Whether a tenant has to let others go first: at its share, or at its absolute limit."""
        return self.capped(tenant) or self.fill(tenant) >= 1.0


def expected_tokens(request: Request, estimates: Estimates) -> float:
    """Prompt and predicted output, the latter no longer than the client's own cap."""
    output = estimates.output_tokens
    output = min(output, request.output_limit)
    return request.prompt_tokens + max(1.0, output)
