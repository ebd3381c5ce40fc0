"""The decision log: what a scheduler decided, entry by entry, whoever drives it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hmas.controller.core.types import Estimates, OutcomeKind, Request
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.results import Dispatch, Dropped, Ended, Refusal
from hmas.controller.scheduling.scheduler import Scheduler

DISPATCHED = "dispatched"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One entry.

    Attributes:
        at_us: Virtual time in microseconds.
        kind: `dispatched`, or how the request ended (`hmas.controller.core.types.OutcomeKind`).
        request: The request's place in the trace, as it declares it in its session.
        instance: Where it goes or ran, empty where it never went anywhere.
        policy: The one in force; of an ending, the one that had dispatched it.
        queued: Requests that wait after this decision.
        tokens: Output tokens of an ending.
        reason: The router's or the refusal's words.
    """

    at_us: int
    kind: str
    request: str
    instance: str = ""
    policy: str
    queued: int
    tokens: int = 0
    reason: str = ""


class LoggedScheduler(Scheduler):
    """The scheduler as it is, with a log of its decisions."""

    def __init__(self, *, log: list[Decision], **parts: Any) -> None:
        """`log` is appended to; `parts` are the scheduler's own."""
        super().__init__(**parts)
        self._log = log

    def submit(self, request: Request, estimates: Estimates, now_s: float, weight: float = 1.0, *, only: str = "") -> QueueEntry | Refusal:
        """As `Scheduler.submit`; a refusal is logged, and each request that makes way for this one."""
        outcome = super().submit(request, estimates, now_s, weight, only=only)
        for one in self._given_up:
            self._note(now_s, one.refusal.kind.value, one.entry.request, reason=one.refusal.message)
        if isinstance(outcome, Refusal):
            self._note(now_s, outcome.kind.value, request, reason=outcome.message)
        return outcome

    def dispatch(self, now_s: float) -> list[Dispatch]:
        """As `Scheduler.dispatch`, logged."""
        sent = super().dispatch(now_s)
        for left, one in zip(reversed(range(len(sent))), sent, strict=True):
            self._note(now_s, DISPATCHED, one.entry.request, instance=one.instance, reason=one.reason, before=left)
        return sent

    def expire(self, now_s: float) -> list[Dropped]:
        """As `Scheduler.expire`, logged."""
        dropped = super().expire(now_s)
        for left, one in zip(reversed(range(len(dropped))), dropped, strict=True):
            self._note(now_s, one.refusal.kind.value, one.entry.request, reason=one.refusal.message, before=left)
        return dropped

    def end(
        self, request_id: str, kind: OutcomeKind, now_s: float, output_tokens: int | None = None, cached_tokens: int | None = None
    ) -> Ended:
        """As `Scheduler.end`, logged."""
        ended = super().end(request_id, kind, now_s, output_tokens, cached_tokens)
        self._note(now_s, kind.value, ended.entry.request, instance=ended.instance, policy=ended.policy, tokens=ended.output_tokens)
        return ended

    def _note(
        self,
        now_s: float,
        kind: str,
        request: Request,
        *,
        instance: str = "",
        policy: str = "",
        tokens: int = 0,
        reason: str = "",
        before: int = 0,
    ) -> None:
        """Adds one entry; `before` others of the same call came after it and were still waiting then."""
        self._log.append(
            Decision(
                at_us=round(now_s * 1e6),
                kind=kind,
                request=request.session,
                instance=instance,
                policy=policy or self.policy,
                queued=self.counts().queued + before,
                tokens=tokens,
                reason=reason,
            )
        )


def first_difference(one: Sequence[Decision], other: Sequence[Decision]) -> int | None:
    """Index of the first entry that is not the same in both logs, None where they are equal. A log that is too short differs at its end."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))
