"""What the scheduler is told at the start and what it answers."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from hmas.controller.core.types import Estimates, OutcomeKind
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that do not change while the scheduler lives.

    Attributes:
        queue_limit: Waiting requests beyond which new ones are refused.
        evict_lower_ranked: Whether a request that ranks better than the worst waiting one takes its place where the queue is full.
        overdue: What becomes of a waiting request that can no longer meet its TTFT target: `keep` it in order, `demote` it
            behind all that still can, or `shed` it.
        fence: Whether Eq. 2 is enforced.
        fence_margin: delta_frag of Eq. 2, 0 to below 1.
        fence_overcommit: Whether a full fence is passed once waiting has cost what a preemption costs (`scheduling.overcommit`).
        fence_prefix_credit: Whether tokens that requests in flight are expected to share are booked once.
        late_service_share: Share of the service TTFT that must still fit before the deadline, 0 to 1; of the prediction and what
            the instances have shown, the shorter counts. 0: overdue means that the deadline has passed.
        late_confidence: How sure it must be that a request sent now would have its first token in time for it not to be overdue, 0 to
            below 1, as far as instances have shown it (see `hmas.controller.scheduling.instances.lateness`). 0: the share alone counts.
        late_share: While requests come in time, demoted ones fill an instance only up to this share of what those in time have
            lately filled, 0 to 1.
        overdue_wait_s: How long after its TTFT target a demoted request waits at most; then it is shed.
        tpot_guard: Share of the room of those in flight that a new prompt may take (see `hmas.controller.scheduling.admission.tpot_guard`),
            0 to 1; 0 switches the guard off.
        headroom: Least target of a request that declares none, over what an instance has shown to take for a request alone (see
            `hmas.controller.scheduling.admission.assumed_targets`); 0 leaves targets as they are.
    """

    queue_limit: int = 10_000
    evict_lower_ranked: bool = True
    overdue: Literal["keep", "demote", "shed"] = "demote"
    fence: bool = True
    fence_margin: float = 0.05
    fence_overcommit: bool = True
    fence_prefix_credit: bool = False
    late_service_share: float = 0.0
    late_confidence: float = 0.0
    late_share: float = 0.25
    overdue_wait_s: float = 86_400.0
    tpot_guard: float = 0.0
    headroom: float = 0.0


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine instance.

    Attributes:
        name: Unique name.
        capacity_n_run: Ceiling of its window, 1 or more; the window at the start.
        kv_capacity_tokens: Tokens its KV cache holds; 0 takes what the engine says, and no fence where it says nothing.
        kv_bytes_per_token: KV bytes of one token.
        models: Models it serves, None for any.
        fence_margin: delta_frag of this instance, None for that of the settings.
        first_token_overhead_ms: What a first token takes beyond its prompt's own prefill, where known beforehand; else 0.
    """

    name: str
    capacity_n_run: int
    kv_capacity_tokens: int = 0
    kv_bytes_per_token: int = 131_072
    models: frozenset[str] | None = None
    fence_margin: float | None = None
    first_token_overhead_ms: float = 0.0


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is not served, ready for the client.

    Attributes:
        kind: The outcome.
        status: HTTP status.
        code: OpenAI error code.
        message: What happened, in words.
        retry_after_s: When trying again makes sense; 0 where it never does.
    """

    kind: OutcomeKind
    status: int
    code: str
    message: str
    retry_after_s: float


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """A request that goes to an instance now.

    Attributes:
        reason: The policy and the router's grounds.
        relieved: What held it back while the instance showed room, where it is dispatched in spite of that; else empty.
    """

    entry: QueueEntry
    instance: str
    reason: str
    relieved: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """One request's whole story; conventions as in `hmas.controller.core.messages.Completion` (-1 for what did not happen).

    Attributes:
        predicted: Estimates when the first token came, or the last ones where none came.
        policy: Name of the policy that dispatched it; the one in force where it was never dispatched.
    """

    entry: QueueEntry
    kind: OutcomeKind
    instance: str
    queue_ms: float
    ttft_ms: float
    service_ttft_ms: float
    tpot_ms: float
    total_ms: float
    output_tokens: int
    slo_met: bool
    running_at_dispatch: int
    kv_usage_at_dispatch: float
    predicted: Estimates
    policy: str


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting request that the scheduler gave up; it has ended already."""

    entry: QueueEntry
    refusal: Refusal
    ended: Ended


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The conservation sum: arrived = queued + running + all that ended, by kind. `dispatched` counts retries too."""

    arrived: int
    queued: int
    running: int
    dispatched: int
    ended: Mapping[OutcomeKind, int]
