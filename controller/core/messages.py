"""Everything that travels on the bus: one struct per message type, and the stream each belongs to.

Receivers ignore fields they do not know; a change that old receivers would misread gets a new `VERSION` (see bus/codec.py).
Times are seconds since the epoch.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from controller.core.types import OutcomeKind, TaskType
from engines.base import EngineSnapshot

VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all messages; `type` is the tag on the wire."""


class RequestNotice(Message, frozen=True, tag="request"):
    """A request has been queued (gateway -> perception).

    Attributes:
        excerpt: Head and tail of the prompt, bounded; empty where prompts may not leave the gateway.
        prompt_chars: Length of the whole prompt in characters.
        ttft_slo_ms: Declared target, 0 where none was declared. Likewise `tpot_slo_ms`.
        max_output_tokens: The client's cap, 0 where none.
        has_tools: Whether tool definitions came along.
        turns: Messages of the conversation, 0 where not known (a plain completion).
        images: Pictures among the content parts.
        session: Opaque name of the conversation (`session_digest`), empty where not known.
    """

    request_id: str
    sent_s: float
    tenant: str
    model: str
    prompt_tokens: int
    prompt_chars: int = 0
    excerpt: str = ""
    ttft_slo_ms: float = 0.0
    tpot_slo_ms: float = 0.0
    max_output_tokens: int = 0
    has_tools: bool = False
    turns: int = 0
    images: int = 0
    session: str = ""


class RequestFeatures(Message, frozen=True, tag="features"):
    """What perception believes about a request (perception -> prediction, gateway).

    Attributes:
        confidence: 0 to 1; below the configured floor the task type is `unknown`.
        output_tokens: Median of the predicted output length.
        output_tokens_p90: 90 % quantile of it.
        output_quantiles: Its quantiles at `controller.core.lengths.LEVELS`; empty where only the two above are known.
        prompt_tokens: Passed on so that prediction needs no second stream.
    """

    request_id: str
    sent_s: float
    tenant: str
    model: str
    prompt_tokens: int
    task_type: TaskType
    confidence: float
    ttft_slo_ms: float
    tpot_slo_ms: float
    importance: float
    output_tokens: float
    output_tokens_p90: float
    source: str = "rules"
    output_quantiles: tuple[float, ...] = ()


class RequestCost(Message, frozen=True, tag="cost"):
    """What a request will cost (prediction -> gateway).

    Attributes:
        ttft_ms: From dispatch to first token, by instance name, as the instances were loaded when asked.
        tpot_ms: Per output token, by instance name.
        output_tokens: The predicted length these stand on.
        ttft_p90_ms, tpot_p90_ms: Their 90 % quantiles, by instance name; the two above are medians.
        total_ms: Quantiles 0.1, 0.5 and 0.9 of dispatch to end, by instance name: cost and output length both uncertain.
    """

    request_id: str
    sent_s: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    output_tokens: float
    ttft_p90_ms: dict[str, float] = {}
    tpot_p90_ms: dict[str, float] = {}
    total_ms: dict[str, tuple[float, float, float]] = {}


class Completion(Message, frozen=True, tag="completion"):
    """A request has ended (gateway -> qos, statera, prediction, perception). Exactly one per submitted request.

    Attributes:
        queue_ms: Arrival to dispatch; -1 where it was never dispatched.
        ttft_ms: Arrival to first token; -1 where none came.
        service_ttft_ms: Dispatch to first token; -1 where none came.
        tpot_ms: Mean time per output token after the first; -1 with fewer than two tokens.
        total_ms: Arrival to end.
        predicted_*: What was believed at dispatch, for residuals.
        running: In flight on the instance when this was dispatched; `kv_usage` likewise.
        slo_met: Whether both targets were met (H-MAS Eq. 1); never true unless completed.
        reason: Why it ended so, in words.
        max_output_tokens: The client's cap, 0 where none: a length that reaches it says only that it would have been longer.
        session: As in the notice.
    """

    request_id: str
    sent_s: float
    tenant: str
    model: str
    outcome: OutcomeKind
    arrival_s: float
    policy: str
    instance: str = ""
    task_type: TaskType = TaskType.UNKNOWN
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    queue_ms: float = -1.0
    ttft_ms: float = -1.0
    service_ttft_ms: float = -1.0
    tpot_ms: float = -1.0
    total_ms: float = -1.0
    ttft_slo_ms: float = 0.0
    tpot_slo_ms: float = 0.0
    predicted_output_tokens: float = 0.0
    predicted_ttft_ms: float = 0.0
    predicted_tpot_ms: float = 0.0
    running: int = 0
    kv_usage: float = -1.0
    slo_met: bool = False
    status: int = 0
    reason: str = ""
    max_output_tokens: int = 0
    session: str = ""


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's own account of one instance, beside what the engine says.

    Attributes:
        in_flight: Requests sent and not ended. `in_flight_tokens`: their prompt plus produced tokens so far.
        n_run, token_budget: Controls in force (token_budget 0: the engine's own).
        kv_committed: Share of the KV fence taken by calibrated upper bounds, 0 to 1.
        tpot_pressure: 90 % quantile over in-flight requests of current TPOT over its SLO; 0 with none decoding.
        capacity_n_run: Largest n_run that makes sense (the engine's own maximum, else the configured one).
        engine: The engine's last snapshot, None where there is none yet.
    """

    name: str
    in_flight: int
    in_flight_tokens: int
    n_run: int
    token_budget: int
    kv_committed: float
    tpot_pressure: float
    capacity_n_run: int
    max_token_budget: int = 0
    draining: bool = False
    engine: EngineSnapshot | None = None


class SystemSnapshot(Message, frozen=True, tag="system"):
    """Queue and engine state, sent every control cycle (gateway -> qos).

    Attributes:
        queued: Waiting requests; `queued_tokens` the prompt tokens among them.
        oldest_wait_ms: Age of the oldest waiting request.
        queued_long: Waiting requests on the slow side of the two-lane threshold.
        overdue: Waiting requests that have already missed their TTFT target.
        arrived_total, dispatched_total, ended: Counters since the gateway started; `ended` by outcome.
        forced: Names of what operators hold (`policy`, `knobs`), so that agents stop arguing.
    """

    sent_s: float
    gateway: str
    policy: str
    queued: int
    queued_tokens: int
    queued_long: int
    overdue: int
    oldest_wait_ms: float
    arrived_total: int
    dispatched_total: int
    ended: dict[str, int]
    instances: list[InstanceView]
    forced: list[str] = []


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
    recent: list[Completion] = []
    forced: list[str] = []
    arrival_rps: float = 0.0
    anomalies: list[str] = []
    fallbacks: list[str] = []


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
    by_task: dict[str, float] = {}
    by_tenant: dict[str, float] = {}
    forced: list[str] = []
    late_service: float = 0.0


class LengthBound(msgspec.Struct, frozen=True, kw_only=True):
    """Conformal correction of one prompt-length bucket (H-MAS Eq. 4, B.3).

    Attributes:
        prompt_tokens_below: Upper edge of the bucket (exclusive); 0 for the last, unbounded one.
        add_tokens: q_(1-eps) of l_real - l_pred in the bucket.
        samples: Errors it stands on.
    """

    prompt_tokens_below: int
    add_tokens: float
    samples: int


class ControlAction(Message, frozen=True, tag="action"):
    """Statera's output C_t for one instance (statera -> gateway). An omitted `token_budget` leaves the engine's own."""

    sent_s: float
    instance: str
    n_run: int
    token_budget: int = 0
    length_bounds: list[LengthBound] = []
    utilization: float = 0.0
    error: float = 0.0
    reason: str = ""


class MetaDecision(Message, frozen=True, tag="decision"):
    """Meta's output A_t with hints (meta -> gateway).

    Attributes:
        decision_id: Unique; the gateway's event names it when applied.
        hints: Topology-specific parameters, validated by the policy (H-MAS C.1).
        bypass: Emergency bypass: FCFS and unbounded knobs (C.2).
        source: `rules`, `rollback`, `bypass`, ...
        evidence: The figures the reason stands on.
    """

    sent_s: float
    decision_id: str
    policy: str
    previous: str
    hints: dict[str, float] = {}
    bypass: bool = False
    reason: str = ""
    source: str = "rules"
    evidence: dict[str, float] = {}


class ModelReport(Message, frozen=True, tag="model_report"):
    """How an agent's model does on live traffic, every few seconds (perception, prediction -> gateway, operators).

    Attributes:
        agent, instance: Who says so; an agent may run several times.
        model: Kind and version of what is reported on.
        role: `active` where its answers are used, `shadow` where they are only scored.
        requests: Answered since the model was loaded; `scored`: of these, with a known outcome.
        figures: By name, as `controller.gateway.model_reports` lists them; unknown ones are ignored.
        coverage: Share of outcomes at or below each stated quantile, by level such as `0.9`.
        fallback: Why this model stands in for the one that was configured, empty where it does not.
        rss_bytes: Memory of the process.
    """

    sent_s: float
    agent: str
    instance: str
    model: str
    role: Literal["active", "shadow"] = "active"
    requests: int = 0
    scored: int = 0
    figures: dict[str, float] = {}
    coverage: dict[str, float] = {}
    fallback: str = ""
    rss_bytes: int = 0


class OverrideNotice(Message, frozen=True, tag="override"):
    """What operators hold at present (admin -> all). An empty notice releases everything."""

    sent_s: float
    policy: str = ""
    hints: dict[str, float] = {}
    knobs: dict[str, dict[str, int]] = {}
    tenant_weights: dict[str, float] = {}
    tenant_limits: dict[str, dict[str, int | float]] = {}
    draining: list[str] = []
    expires_s: float = 0.0
    author: str = ""
    reason: str = ""


Severity = Literal["info", "warning", "error"]


class Event(Message, frozen=True, tag="event"):
    """What changed, why, from what to what (all -> operators)."""

    sent_s: float
    source: str
    kind: str
    subject: str
    before: str = ""
    after: str = ""
    reason: str = ""
    severity: Severity = "info"
    decision_id: str = ""
    data: dict[str, Any] = {}


AnyMessage = (
    RequestNotice
    | RequestFeatures
    | RequestCost
    | Completion
    | SystemSnapshot
    | ShortView
    | LongView
    | ControlAction
    | MetaDecision
    | ModelReport
    | OverrideNotice
    | Event
)

REQUESTS = "hmas:requests"
FEATURES = "hmas:features"
COSTS = "hmas:costs"
TELEMETRY = "hmas:telemetry"
VIEWS = "hmas:views"
ACTIONS = "hmas:actions"
DECISIONS = "hmas:decisions"
MODELS = "hmas:models"
OVERRIDES = "hmas:overrides"
EVENTS = "hmas:events"

STREAM_OF: Mapping[type[Message], str] = MappingProxyType(
    {
        RequestNotice: REQUESTS,
        RequestFeatures: FEATURES,
        RequestCost: COSTS,
        Completion: TELEMETRY,
        SystemSnapshot: TELEMETRY,
        ShortView: VIEWS,
        LongView: VIEWS,
        ControlAction: ACTIONS,
        MetaDecision: DECISIONS,
        ModelReport: MODELS,
        OverrideNotice: OVERRIDES,
        Event: EVENTS,
    }
)
"""The one stream that each message type travels on."""

MAXLEN: Mapping[str, int] = MappingProxyType(
    {
        REQUESTS: 20_000,
        FEATURES: 20_000,
        COSTS: 20_000,
        TELEMETRY: 20_000,
        VIEWS: 2_000,
        ACTIONS: 5_000,
        DECISIONS: 2_000,
        MODELS: 1_000,
        OVERRIDES: 200,
        EVENTS: 10_000,
    }
)
"""Bound of each stream in entries (trimmed by whole nodes, so a little more may stand)."""
