"""What a tenant may use: tokens and requests per minute, a share of the slots, and room in the queue."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.admission.token_bucket import TokenBucket
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.settings import BODY_BYTES_WAITING_MOST

_MINUTE_S = 60.0


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one tenant; the defaults set none but the one on bodies that wait.

    Attributes:
        tokens_per_minute: Prompt and output tokens per minute, 0 for no quota.
        burst_tokens: Tokens that the tenant may use at once after a pause, 0 for a minute's worth.
        requests_per_minute: Requests admitted per minute, and at once after a pause; 0 for no quota.
        concurrency_share: Largest share of the fleet's windows that its sequences may hold while others wait, above 0 to 1; 1 for no limit.
        max_running: Most sequences that it may ever have in flight, 0 for no limit.
        max_queued: Most requests of it that may wait, 0 for no limit.
        max_body_bytes_waiting: Most bytes that the bodies of its waiting requests may have together, 0 for no limit. One body may always
            wait.
    """

    tokens_per_minute: int = 0
    burst_tokens: int = 0
    requests_per_minute: int = 0
    concurrency_share: float = 1.0
    max_running: int = 0
    max_queued: int = 0
    max_body_bytes_waiting: int = BODY_BYTES_WAITING_MOST

    @property
    def bounded(self) -> bool:
        """Whether these limits bound the tenant's slots."""
        return self.concurrency_share < 1.0 or self.max_running > 0

    @property
    def metered(self) -> bool:
        """Whether these limits bound a rate."""
        return self.tokens_per_minute > 0 or self.requests_per_minute > 0


NO_LIMITS = TenantLimits()
"""The limits of a tenant that has none configured."""


class RateState(msgspec.Struct, frozen=True, kw_only=True):
    """One quota as reported to a client: the limit per minute, what is left now, and the seconds until it is full again."""

    limit: int
    remaining: int
    reset_s: float


class OverQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Why a tenant has to wait: the quota (`tokens` or `requests`), its limit per minute, and the seconds until it holds enough."""

    what: str
    limit: int
    wait_s: float


class OverWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """What of a tenant waits already: so much of `what`; the request asks for more, and the limit of that name does not allow it."""

    what: str
    held: int
    asked: int
    limit_name: str
    limit: int


class _Meter:
    """The two token buckets of one tenant; a rate without a limit has no bucket."""

    __slots__ = ("requests", "tokens")

    def __init__(self, limits: TenantLimits, now_s: float) -> None:
        self.tokens: TokenBucket | None = None
        self.requests: TokenBucket | None = None
        self.adjust(limits, now_s)

    def adjust(self, limits: TenantLimits, now_s: float) -> None:
        """Applies the current limits. An existing bucket keeps its fill level, a new one starts full."""
        self.tokens = _bucket(self.tokens, limits.tokens_per_minute, limits.burst_tokens, now_s)
        self.requests = _bucket(self.requests, limits.requests_per_minute, 0, now_s)


def _bucket(before: TokenBucket | None, per_minute: int, burst: int, now_s: float) -> TokenBucket | None:
    """The bucket of a rate, None without a rate. Its default burst is one minute's worth."""
    if not per_minute:
        return None
    capacity, per_s = burst or per_minute, per_minute / _MINUTE_S
    if before is None:
        return TokenBucket(capacity, per_s, now_s)
    before.resize(capacity, per_s, now_s)
    return before


class Tenancy:
    """The quota and slot accounts of all tenants. O(1) a request; a tenant without limits costs no memory while it has no request.

    A request is charged its prompt and its predicted output when it is admitted. When it ends, the charge is corrected to the tokens it
    really used. A request that never ran costs no tokens, only its place among the requests per minute. So requests in flight count, and a
    wrong prediction is corrected within the lifetime of one request.

    Attributes:
        bounded: Tenants with limited slots.
        charged: Tokens charged for each admitted request whose end is to correct them, by request id.
        metered: Tenants that have a quota.
        running: Sequences in flight by tenant; tenants that have none are left out.
        waiting: Waiting requests by tenant, and the bytes of their bodies; tenants of which none waits are left out.
        version: A counter that grows whenever the result of `closed` may have changed.
    """

    __slots__ = ("_instances", "_limits", "_meters", "_windows", "bounded", "charged", "metered", "running", "version", "waiting")

    def __init__(self, limits: Mapping[str, TenantLimits], instances: Sequence[Instance]) -> None:
        self._limits = dict(limits)
        self._instances = tuple(instances)
        self._meters: dict[str, _Meter] = {}
        self.charged: dict[str, float] = {}
        self._windows = sum(instance.n_run for instance in self._instances)
        self.bounded = {name for name, one in self._limits.items() if one.bounded}
        self.metered = {name for name, one in self._limits.items() if one.metered}
        self.running: Counter[str] = Counter()
        self.version = 0
        self.waiting: dict[str, tuple[int, int]] = {}

    def limits(self, tenant: str) -> TenantLimits:
        """The limits of a tenant."""
        return self._limits.get(tenant, NO_LIMITS)

    def set_limits(self, tenant: str, limits: TenantLimits, now_s: float) -> None:
        """Replaces a tenant's limits, `NO_LIMITS` for none.

        Quotas apply from the next request on; charges already made for requests in flight stay as they are.
        """
        if limits == NO_LIMITS:
            self._limits.pop(tenant, None)
        else:
            self._limits[tenant] = limits
        for names, applies in ((self.bounded, limits.bounded), (self.metered, limits.metered)):
            if applies:
                names.add(tenant)
            else:
                names.discard(tenant)
        meter = self._meters.get(tenant)
        if meter is not None and limits.metered:
            meter.adjust(limits, now_s)
        elif meter is not None:
            del self._meters[tenant]
        self.version += 1

    # -- rates ------------------------------------------------------------------------------------------------------------

    def over_quota(self, request: Request, estimates: Estimates, now_s: float) -> OverQuota | None:
        """The quota that does not admit this request now, None if both do. If neither does, the one with the longer wait."""
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

    def take_request(self, tenant: str, now_s: float) -> OverQuota | None:
        """Charges a request that does not wait in the queue to the tenant's requests per minute, or returns why it is not admitted."""
        meter = self._meter(tenant, now_s)
        if meter is None or meter.requests is None:
            return None
        wait_s = meter.requests.wait_s(1.0, now_s)
        if wait_s > 0.0:
            return OverQuota(what="requests", limit=self._limits[tenant].requests_per_minute, wait_s=wait_s)
        meter.requests.take(1.0, now_s)
        return None

    def charge(self, request: Request, estimates: Estimates, now_s: float) -> None:
        """Charges a request that is admitted."""
        meter = self._meter(request.tenant, now_s)
        if meter is None:
            return
        if meter.requests is not None:
            meter.requests.take(1.0, now_s)
        if meter.tokens is not None:
            expected = expected_tokens(request, estimates)
            meter.tokens.take(expected, now_s)
            self.charged[request.id] = expected

    def settle(self, request: Request, tokens: int, now_s: float) -> None:
        """Corrects the charge of a request that has ended: gives back the excess, or takes the rest. `tokens` is 0 if it never ran."""
        # The tenant's quota may have been added since.
        expected = self.charged.pop(request.id, None) if self.charged else None
        if expected is not None:
            self.correct(request.tenant, tokens - expected, now_s)

    def correct(self, tenant: str, tokens: float, now_s: float) -> None:
        """Takes tokens that a tenant has used beyond what it was charged, or gives them back if less than 0."""
        # The tenant's quota may have been removed since.
        meter = self._meters.get(tenant)
        if meter is not None and meter.tokens is not None:
            meter.tokens.take(tokens, now_s)

    def rates(self, tenant: str, now_s: float) -> dict[str, RateState]:
        """A tenant's quotas as reported to clients, keyed by `tokens` and `requests`; empty without quotas."""
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

    def serve_with(self, instances: Sequence[Instance]) -> None:
        """Counts the windows of these instances from now on."""
        self._instances = tuple(instances)
        self.look()

    def look(self) -> None:
        """Reads the current windows of the fleet. O(instances)."""
        windows = sum(instance.n_run for instance in self._instances if instance.available)
        if windows != self._windows:
            self._windows = windows
            self.version += 1

    def started(self, request: Request) -> None:
        """Records that a request was dispatched."""
        self.running[request.tenant] += request.sequences
        self.version += request.tenant in self.bounded

    def stopped(self, request: Request) -> None:
        """Records that a request is no longer in flight."""
        self.running[request.tenant] -= request.sequences
        if not self.running[request.tenant]:
            del self.running[request.tenant]
        self.version += request.tenant in self.bounded

    def fill(self, tenant: str) -> float:
        """Slots that a tenant holds over its share of the windows: 1 or more means that it is at its share. It may always hold one slot."""
        slots = self._slots(tenant)
        return self.running[tenant] / slots if slots else 0.0

    def capped(self, tenant: str, sequences: int = 1) -> bool:
        """Whether so many sequences would exceed a tenant's absolute limit, which holds even if no other tenant waits.

        A request with more sequences than that limit, or than a tenant's share, may go once the tenant has nothing else in flight.
        """
        return self._exceeds(tenant, sequences, self.limits(tenant).max_running)

    def closed(self, tenant: str, sequences: int = 1) -> bool:
        """Whether a tenant has to let others go first: so many sequences would exceed its share or its absolute limit."""
        return self.capped(tenant, sequences) or self._exceeds(tenant, sequences, self._slots(tenant))

    def _exceeds(self, tenant: str, sequences: int, most: int) -> bool:
        return most > 0 and self.running[tenant] > 0 and self.running[tenant] + sequences > most

    def _slots(self, tenant: str) -> int:
        """The slots of a tenant's share, 1 or more; 0 if it has no limit on its share."""
        share = self.limits(tenant).concurrency_share
        return 0 if share >= 1.0 else max(1, int(share * self._windows + 1e-9))

    # -- room in the queue ------------------------------------------------------------------------------------------------

    def over_waiting(self, request: Request) -> OverWaiting | None:
        """The limit on a tenant's waiting requests that does not admit this one, None if there is none."""
        held = self.waiting.get(request.tenant)
        if held is None:
            return None
        limits = self.limits(request.tenant)
        requests, body_bytes = held
        if 0 < limits.max_queued <= requests:
            return OverWaiting(what="requests", held=requests, asked=1, limit_name="max_queued", limit=limits.max_queued)
        most = limits.max_body_bytes_waiting
        if 0 < most < body_bytes + request.body_bytes:
            name = "max_body_bytes_waiting"
            return OverWaiting(what="bytes of bodies", held=body_bytes, asked=request.body_bytes, limit_name=name, limit=most)
        return None

    def joined(self, request: Request) -> None:
        """Records that a request waits."""
        requests, body_bytes = self.waiting.get(request.tenant, (0, 0))
        self.waiting[request.tenant] = (requests + 1, body_bytes + request.body_bytes)

    def left(self, request: Request) -> None:
        """Records that a request no longer waits."""
        requests, body_bytes = self.waiting[request.tenant]
        if requests > 1:
            self.waiting[request.tenant] = (requests - 1, body_bytes - request.body_bytes)
        else:
            del self.waiting[request.tenant]


def expected_tokens(request: Request, estimates: Estimates) -> float:
    """Prompt tokens plus predicted output tokens of all sequences, the latter bounded by the client's own cap."""
    output = estimates.output_tokens
    output = min(output, request.output_limit)
    return request.prompt_tokens + max(float(request.sequences), output)
