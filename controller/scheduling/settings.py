"""The scheduler's initial configuration. The shipped defaults are defined here only."""

from typing import Literal

import msgspec

from hmas.controller.core.slo import BASE_SLO
from hmas.controller.core.types import TaskType

BODY_BYTES_WAITING_MOST = 128 << 20
"""Most bytes that the bodies of a tenant's waiting requests may have together, where nothing else is set: eight of the largest bodies, a
quarter of what the gateway holds of all tenants."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that do not change while the scheduler lives.

    Attributes:
        binding: When a request is bound to an instance: `central` leaves it in one queue until it is dispatched; with `arrival` the router
            chooses its instance at once, and it waits in the queue of that one
            (`hmas.controller.scheduling.binding`).
        queue_limit: Number of waiting requests beyond which new ones are refused.
        evict_lower_ranked: Whether a request that ranks better than the worst waiting one takes its place if the queue is full.
        overdue: What becomes of a waiting request that can no longer meet its TTFT target: `keep` it in order, `demote` it behind all that
            still can, or `shed` it.
        fence: Whether Eq. 2 is enforced.
        fence_margin: delta_frag of Eq. 2, 0 to below 1.
        fence_overcommit: Whether a request may pass a full fence once waiting has cost what a preemption costs
            (`hmas.controller.scheduling.instances.overcommit`).
        fence_in_bypass: Whether Eq. 2 holds in the emergency bypass, too.
        idle_relief: Whether a request that is held back beside an instance that is less than half full is dispatched after a second.
        late_service_share: Share of the service TTFT that must still fit before the deadline, 0 to 1; the shorter of the prediction and the
            measurements of the instances counts. 0: overdue means that the deadline has passed.
        late_confidence: Required confidence that the first token of a request dispatched now would be in time, 0 to below 1; otherwise the
            request is overdue. It needs measurements of the instances (see `hmas.controller.scheduling.instances.lateness`). 0: only
            `late_service_share` counts.
        late_share: While requests come in time, demoted ones fill an instance only up to this share of what those in time have recently
            filled, 0 to 1.
        overdue_wait_s: How long after its TTFT target a demoted request waits at most; then it is shed.
        tpot_guard: Share of the room of the requests in flight that a new prompt may take (see
            `hmas.controller.scheduling.admission.tpot_guard`), 0 to 1; 0 switches the guard off.
        headroom: Least target of a request that declares none, as a multiple of the measured time of a request alone on an instance (see
            `hmas.controller.scheduling.admission.assumed_targets`); 0 leaves targets as they are.
        usual_tpot_ms: TPOT target of a request without declared targets whose task is unknown. Where `headroom` times an engine's pace
            alone is more, TTFT targets that are not declared grow in proportion.
    """

    binding: Literal["central", "arrival"] = "central"
    queue_limit: int = 10_000
    evict_lower_ranked: bool = True
    overdue: Literal["keep", "demote", "shed"] = "demote"
    fence: bool = True
    fence_margin: float = 0.05
    fence_overcommit: bool = True
    fence_in_bypass: bool = True
    idle_relief: bool = True
    late_service_share: float = 0.0
    late_confidence: float = 0.0
    late_share: float = 0.25
    overdue_wait_s: float = 86_400.0
    tpot_guard: float = 0.0
    headroom: float = 0.0
    usual_tpot_ms: float = BASE_SLO[TaskType.UNKNOWN].tpot_ms


SHIPPED = SchedulerSettings(
    queue_limit=6_000, late_service_share=0.5, late_confidence=0.5, overdue_wait_s=15.0, tpot_guard=0.7, headroom=3.0
)
"""The settings of a gateway with an empty configuration. With `SchedulerSettings()` only the fence and deadlines limit requests."""


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine instance.

    Attributes:
        name: Unique name.
        capacity_n_run: Ceiling of its window, 1 or more; the window at the start.
        kv_capacity_tokens: Tokens its KV cache holds; 0 uses what the engine reports, and no fence if it reports nothing.
        kv_bytes_per_token: KV bytes of one token.
        models: Models it serves, None for any.
        fence_margin: delta_frag of this instance, None for that in the settings.
        first_token_overhead_ms: What a first token takes beyond its prompt's own prefill, if known beforehand; else 0.
        profile: What the configuration says of its speed, passed on to the agents.
    """

    name: str
    capacity_n_run: int
    kv_capacity_tokens: int = 0
    kv_bytes_per_token: int = 131_072
    models: frozenset[str] | None = None
    fence_margin: float | None = None
    first_token_overhead_ms: float = 0.0
    profile: str = ""
