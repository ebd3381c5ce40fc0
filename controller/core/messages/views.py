"""The views that qos computes from the telemetry: the fast and the slow one (H-MAS 3.3)."""

import msgspec
from msgspec import field

from hmas.controller.core.messages.base import Message
from hmas.controller.core.messages.requests import Completion
from hmas.controller.core.messages.system import InstanceView

VIEW_FRESH_S = 3.0
"""Age above which a short view is of no use any more, and no view is made of a snapshot."""


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles in milliseconds over a window; all 0 if `count` is 0."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class LengthSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths in tokens over a window, each with an error of at most 1 %; all 0 if `count` is 0. `cv`: standard deviation over mean."""

    count: int = 0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    cv: float = 0.0


class ChangePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting change of a figure of the workload (agents/qos/changes.py).

    Attributes:
        figure: `arrival_rps`, `prompt_mean`, `output_mean` or `by_task`.
        at_s: When it began, to within a block (a twelfth of the long window). `found_s`: when it was certain.
        before, after: The figure before and after the change; for `by_task` 0 and the share of requests with a changed type.
        detail: For `by_task`, the type with the largest change of share; else empty.
    """

    figure: str
    at_s: float
    found_s: float
    before: float
    after: float
    detail: str = ""


class TelemetryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Faults in the telemetry, counted since qos started.

    Attributes:
        late: Completions from before the window, which no view counts. `duplicates`: completions that were delivered before.
        ahead: Completions with a time ahead of the clock, which count as current.
        unordered: Snapshots older than one already seen, which are ignored.
        restarts: Gateways that restarted, or had their clock set back.
    """

    late: int = 0
    duplicates: int = 0
    ahead: int = 0
    unordered: int = 0
    restarts: int = 0


class ShortView(Message, frozen=True, tag="short_view"):
    """V_short: the fast view (qos -> statera, and meta's guards), every cycle (H-MAS 3.3).

    Attributes:
        sent_s: Time of the snapshot that it shows: its age is that of its figures.
        window_s: Span of the latency figures.
        violation_rate: Share of requests settled within the window, by ending or by passing their TTFT target in the queue, that missed an
            SLO; `ttft_violation_rate`, `tpot_violation_rate`: the same by target, the latter for ended requests.
        queue_slope: Requests per second by which the queue grows (negative: shrinks).
        utilization: Per instance, 0 to above 1: the larger of TPOT pressure and KV use (see agents/qos).
        arrival_rps: Requests per second that arrived within the window.
        anomalies: Lasting contradictions in the telemetry that indicate a stuck or broken control loop (agents/qos/anomalies.py).
        fallbacks: Names of the figures that are based on a fallback because the engine does not report them.
        span_s: Time that the window really covers; rates are per second of it.
        overdue: Waiting requests that have missed their TTFT target.
        running: Requests on the instances.
        kv_usage: Per instance, the share of the KV cache in use, or of the fence if the engine does not report it (`kv_usage:` in
            fallbacks).
        utilization_source: Per instance, the signal that determines its utilization: `tpot_pressure`, `kv_usage` or `kv_committed`.
        telemetry: Faults in the telemetry.
    """

    sent_s: float
    window_s: float
    policy: str
    queued: int
    oldest_wait_ms: float
    queue_slope: float
    ended: int
    ttft_ms: LatencySummary
    tpot_ms: LatencySummary
    violation_rate: float
    ttft_violation_rate: float
    tpot_violation_rate: float
    goodput_rps: float
    throughput_tps: float
    utilization: dict[str, float]
    instances: list[InstanceView]
    recent: list[Completion] = field(default_factory=list)
    forced: list[str] = field(default_factory=list)
    arrival_rps: float = 0.0
    anomalies: list[str] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    span_s: float = 0.0
    overdue: int = 0
    running: int = 0
    kv_usage: dict[str, float] = field(default_factory=dict)
    utilization_source: dict[str, str] = field(default_factory=dict)
    telemetry: TelemetryCounts = TelemetryCounts()


class LongView(Message, frozen=True, tag="long_view"):
    """V_long: the slow view (qos -> meta), every few seconds over the aggregation window (H-MAS 3.3, C.1).

    Attributes:
        sent_s: As in `ShortView`.
        arrival_rps: Mean arrival rate; `arrival_cv` the coefficient of variation of inter-arrival times.
        burst_ratio: Largest 1 s arrival count over the mean.
        prompt_mean, output_mean, total_cv: Lengths in tokens, and the variation of service time (severity of HOL blocking).
        long_share: Share of requests whose service took more than twice the mean; `long_backlog`: waiting requests above the two-lane
            threshold.
        deadline_miss_share: Share of settled requests (see `ShortView`) that missed TTFT while waiting, not during service.
        late_service: Share of served requests that had missed their TTFT target before service began: capacity spent in vain.
        mismatch: Utilization-gap score of Eq. 7, mean over the window; `mismatch_p95` its 95 % quantile.
        fairness: Jain index of tokens served per weighted tenant among the tenants with requests, `fairness_tenants` in number; with fewer
            than two it is 1 and says nothing.
        by_task: Share of ended requests whose task type is known: perception is not asked about every request.
        by_tenant: Share of ended requests, the largest ones by name and the rest as `other`.
        arrival_dispersion: Variance over mean of the arrivals per sub-window (a sixtieth of the window): 1 for Poisson, more for bursts.
        prompt_tokens, output_tokens: Lengths of requests that ended, and of requests that completed.
        changes: Change points found within the window, oldest first.
        tenant_error: By how much a share in `by_tenant` may be too small; 0 while there are at most 128 tenants a sub-window.
        telemetry: Faults in the telemetry.
    """

    sent_s: float
    window_s: float
    policy: str
    arrived: int
    ended: int
    arrival_rps: float
    arrival_cv: float
    burst_ratio: float
    prompt_mean: float
    output_mean: float
    total_cv: float
    long_share: float
    long_backlog: int
    queued: int
    ttft_ms: LatencySummary
    tpot_ms: LatencySummary
    violation_rate: float
    ttft_violation_rate: float
    tpot_violation_rate: float
    deadline_miss_share: float
    goodput_rps: float
    goodput_rate: float
    mismatch: float
    mismatch_p95: float
    fairness: float
    by_task: dict[str, float] = field(default_factory=dict)
    by_tenant: dict[str, float] = field(default_factory=dict)
    forced: list[str] = field(default_factory=list)
    late_service: float = 0.0
    arrival_dispersion: float = 0.0
    prompt_tokens: LengthSummary = LengthSummary()
    output_tokens: LengthSummary = LengthSummary()
    changes: list[ChangePoint] = field(default_factory=list)
    tenant_error: float = 0.0
    fairness_tenants: int = 0
    telemetry: TelemetryCounts = TelemetryCounts()
