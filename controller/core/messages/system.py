"""The gateway's account of its queue and its instances."""

import msgspec
from msgspec import field

from hmas.controller.core.messages.base import Message
from hmas.engines.base import EngineSnapshot


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's own account of one instance, beside what the engine says.

    Attributes:
        in_flight: Requests sent and not ended. `in_flight_tokens`: their prompt plus produced tokens so far.
        n_run, token_budget: Controls in force (token_budget 0: the engine's own).
        kv_committed: Share of the KV fence taken by calibrated upper bounds, 0 to 1.
        tpot_pressure: 90 % quantile over in-flight requests of current TPOT over its SLO; 0 with none decoding.
        first_token_overhead_ms: Within what time a first token mostly comes beyond its prompt's own prefill; 0 where that is not known.
        guard: Factor on the TPOT guard's share in force; 0 where someone has named the share, which then holds for all instances.
        guarded: Whether the TPOT guard is on.
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
    guard: float = 1.0
    guarded: bool = True
    first_token_overhead_ms: float = 0.0


class SystemSnapshot(Message, frozen=True, tag="system"):
    """Queue and engine state, sent every control cycle (gateway -> qos).

    Attributes:
        queued: Waiting requests; `queued_tokens` the prompt tokens among them.
        oldest_wait_ms: Age of the oldest waiting request.
        queued_long: Waiting requests on the slow side of the two-lane threshold.
        overdue: Waiting requests that can no longer meet their TTFT target, as the scheduler judges it.
        arrived_total, dispatched_total, ended: Counters since the gateway started; `ended` by outcome.
        forced: Names of what operators hold (`policy`; `knobs` and `budget` of all instances, `knobs:INSTANCE` of one), so that agents
            stop arguing.
        queued_by_task: Waiting requests by task type, as far as it is known yet; types of which none waits are left out.
        cost_threshold: Cost above which requests are put behind at the moment (policy `robust-edf`), tokens; 0 where none are.
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
    queued_by_task: dict[str, int] = field(default_factory=dict)
    cost_threshold: float = 0.0
