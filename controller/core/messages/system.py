"""The gateway's account of its queue and its instances."""

import msgspec
from msgspec import field

from hmas.controller.core.messages.base import Message
from hmas.engines.base import EngineSnapshot


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's own account of one instance, next to the engine's report.

    Attributes:
        in_flight: Requests that were sent and have not ended. `in_flight_tokens`: their prompt plus produced tokens so far.
        sequences: Sequences of these requests; 0 if unknown.
        queued: Requests that are bound to it and wait. `queued_for`: all that wait for its models, over the instances
            that may take them, or over all that serve them if none may. Those of a model do not count while each waits for its tenant's
            own limit of running requests.
        n_run, token_budget: The active controls (token_budget 0: the engine's own).
        kv_committed: Share of the KV fence taken by calibrated upper bounds, 0 to 1.
        tpot_pressure: 90 % quantile over in-flight requests of TPOT over its SLO, of whole answers as expected; 0 with none decoding.
        first_token_overhead_ms: Usual time of a first token beyond its prompt's own prefill; 0 if unknown.
        guard: Active factor on the TPOT guard's share; 0 if the share was set explicitly, which then applies to all instances.
        guard_enabled: Whether the TPOT guard is on.
        capacity_n_run: Largest useful n_run (the engine's own maximum, else the configured one).
        engine: The engine's last snapshot, None if there is none yet.
        profile: What the configuration says of its speed (`engines[].profile`), empty for nothing.
        models: The models that it serves, in alphabetical order; empty for any, and if they are too many to be told.
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
    guard: float = 1.0
    guard_enabled: bool = True
    first_token_overhead_ms: float = 0.0
    sequences: int = 0
    profile: str = ""
    queued: int = 0
    queued_for: float = 0.0
    models: list[str] = field(default_factory=list)

    @property
    def occupied(self) -> int:
        """Slots of the window that are taken: one for each sequence."""
        return max(self.in_flight, self.sequences)

    @property
    def usable(self) -> bool:
        """Whether new requests may go to it: its engine is not known to be down, and it is not draining."""
        return not self.draining and (self.engine is None or self.engine.healthy)


class SystemSnapshot(Message, frozen=True, tag="system"):
    """Queue and engine state, sent every control cycle (gateway -> qos).

    Attributes:
        queued: Waiting requests; `queued_tokens`: their prompt tokens.
        oldest_wait_ms: Age of the oldest waiting request.
        queued_long: Waiting requests on the slow side of the two-lane threshold.
        overdue: Waiting requests that can no longer meet their TTFT target, as determined by the scheduler.
        arrived_total, dispatched_total, ended: Counters since the gateway started; `ended` by outcome.
        arrived_prompt_tokens_total: Prompt tokens of the requests that arrived since then; 0 if the gateway does not count them.
        forced: Names of the settings that operators force (`policy`; `knobs` and `budget` of all instances, `knobs:INSTANCE` of one), so
            that agents do not try to change them.
        cost_threshold: Cost in tokens above which requests are currently put behind others (policy `robust-edf`); 0 if none are.
        tenant_weights: The tenants' weights that are in force, of those with another than 1.
        wants_times_alone: Whether a router goes by a request's times without load (`RequestCost.alone_ttft_ms`).
        windows_without_meta: Of the instances whose window meta has set, the window that they would have else.
        meta_aside: Whether meta's windows, and its share of the TPOT guard, are set aside.
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
    forced: list[str] = field(default_factory=list)
    cost_threshold: float = 0.0
    arrived_prompt_tokens_total: int = 0
    wants_times_alone: bool = False
    tenant_weights: dict[str, float] = field(default_factory=dict)
    windows_without_meta: dict[str, int] = field(default_factory=dict)
    meta_aside: bool = False
