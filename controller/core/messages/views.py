"""What qos makes of the telemetry: the fast view and the slow one (H-MAS 3.3)."""

import msgspec
from msgspec import field

from controller.core.messages.base import Message
from controller.core.messages.requests import Completion
from controller.core.messages.system import InstanceView


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles in milliseconds over a window; all 0 where `count` is 0."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class ShortView(Message, frozen=True, tag="short_view"):
    """V_short: the fast view (qos -> statera, and meta's guards), every cycle (H-MAS 3.3).

    Attributes:
        window_s: Span of the latency figures.
        violation_rate: Share of requests whose fate was settled within the window, by ending or by passing their TTFT target in the queue,
            that missed an SLO; `ttft_violation_rate`, `tpot_violation_rate` by target, the latter of ended ones.
        queue_slope: Requests per second by which the queue grows (negative: shrinks).
        utilization: Per instance, 0 to above 1: the larger of TPOT pressure and KV use (see agents/qos).
        arrival_rps: Requests per second that arrived within the window.
        anomalies: Lasting contradictions in the telemetry that speak of a stuck or broken control loop (agents/qos/anomalies.py).
        fallbacks: Names of the figures that stand on a fallback because the engine does not give them.
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


class LongView(Message, frozen=True, tag="long_view"):
    """V_long: the slow view (qos -> meta), once per aggregation window (H-MAS 3.3, C.1).

    Attributes:
        arrival_rps: Mean arrival rate; `arrival_cv` the coefficient of variation of inter-arrival times.
        burst_ratio: Largest 1 s arrival count over the mean.
        prompt_mean, output_mean, total_cv: Lengths in tokens, and the variation of service time (severity of HOL blocking).
        long_share: Share of requests above the two-lane threshold; `long_backlog` how many of them wait.
        deadline_miss_share: Share of settled requests (see `ShortView`) that missed TTFT while waiting, not while being served.
        late_service: Share of served requests that had lost their TTFT target before service began: capacity spent on what is lost.
        mismatch: Utilization-gap score of Eq. 7, mean over the window; `mismatch_p95` its 95 % quantile.
        fairness: Jain index of tokens served per weighted tenant among those who asked, 1 with fewer than two.
        by_task, by_tenant: Share of arrivals.
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
