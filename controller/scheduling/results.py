"""The results that the scheduler returns."""

from collections.abc import Mapping

import msgspec

from hmas.controller.core.types import Estimates, OutcomeKind
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is not served, in a form that is ready for the client.

    Attributes:
        kind: The outcome.
        status: HTTP status.
        code: OpenAI error code.
        message: A description of what happened.
        retry_after_s: Seconds after which a retry is useful; 0 if it never is.
    """

    kind: OutcomeKind
    status: int
    code: str
    message: str
    retry_after_s: float


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """A request that goes to an instance now.

    Attributes:
        reason: The policy, and the reason for the router's choice.
        scores: The instance's scores (`Choice.scores`).
        relieved: The reason that held the request back while the instance had capacity, if it is dispatched despite it; else empty.
    """

    entry: QueueEntry
    instance: str
    reason: str
    relieved: str = ""
    scores: tuple[tuple[str, float, float], ...] = ()


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result of one request; conventions as in `hmas.controller.core.messages.Completion` (-1 for what did not happen).

    Attributes:
        paid_tokens: Output tokens that its tenant pays for: those known, or the likely ones of a whole answer that broke off
            or was not counted.
        predicted: Estimates at the first token, or the last ones if none came.
        policy: Name of the policy that dispatched it; the active one if it was never dispatched.
        status: The HTTP status of its refusal, 0 if it was not refused at its arrival or the scheduler does not know it.
    """

    entry: QueueEntry
    kind: OutcomeKind
    instance: str = ""
    queue_ms: float = -1.0
    ttft_ms: float = -1.0
    service_ttft_ms: float = -1.0
    tpot_ms: float = -1.0
    total_ms: float
    output_tokens: int = 0
    paid_tokens: int = 0
    slo_met: bool = False
    running_at_dispatch: int = 0
    kv_usage_at_dispatch: float = -1.0
    predicted: Estimates
    policy: str
    status: int = 0


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting request that the scheduler gave up. It has already ended."""

    entry: QueueEntry
    refusal: Refusal
    ended: Ended


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The conservation sum: arrived = queued + running + all that ended, by kind. `dispatched` counts retries too.

    `arrived_prompt_tokens` are the prompt tokens of those that arrived.
    """

    arrived: int
    arrived_prompt_tokens: int
    queued: int
    running: int
    dispatched: int
    ended: Mapping[OutcomeKind, int]


class TenantLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant has waiting and in flight.

    Attributes:
        waiting, running: Its requests that wait, and that are in flight.
        overdue: How many that wait can no longer meet their TTFT target.
        oldest_wait_ms: Age of its oldest waiting request.
        waits_for: Why that request waits, as far as it was considered; empty if none waits.
        floods: Whether it floods (`hmas.controller.scheduling.queue.tenant_accounts`), and so is held to its share.
    """

    waiting: int = 0
    running: int = 0
    overdue: int = 0
    oldest_wait_ms: float = 0.0
    waits_for: str = ""
    floods: bool = False

    def plus(self, other: "TenantLoad") -> "TenantLoad":
        """The load of both together."""
        older = self if self.oldest_wait_ms >= other.oldest_wait_ms else other
        return TenantLoad(
            waiting=self.waiting + other.waiting,
            running=self.running + other.running,
            overdue=self.overdue + other.overdue,
            oldest_wait_ms=older.oldest_wait_ms,
            waits_for=older.waits_for,
            floods=self.floods or other.floods,
        )
