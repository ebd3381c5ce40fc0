"""The records of requests that have ended: made once, posted to the agents, and summed up for operators over the last minute."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.core.fairness import Fairness, Service, fairness
from hmas.controller.core.messages import RequestCost
from hmas.controller.core.types import OutcomeKind
from hmas.controller.observability.observer import Completion, Observer, Request
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.results import Ended

RECENT_S = 60.0
RECENT_KEPT = 5_000
FAIRNESS_OVER = 1000
"""Most completions over which fairness is computed, which bounds the time to a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Figures of the last minute, for operators."""

    window_s: float
    ended: int
    completed: int
    slo_met: int
    ttft_ms: tuple[float, ...] = field(repr=False)
    tpot_ms: tuple[float, ...] = field(repr=False)


class CompletionRecorder(Observer):
    """Posts every completion to the agents, and keeps those of the last minute."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._recent: deque[Completion] = deque(maxlen=RECENT_KEPT)

    def ended(self, completion: Completion) -> None:
        """See `Observer.ended`."""
        self._bus.post(completion)
        self._recent.append(completion)

    def recent(self) -> Recent:
        """Figures of the last minute."""
        now_s = self._clock.now_s()
        while self._recent and self._recent[0].sent_s < now_s - RECENT_S:
            self._recent.popleft()
        done = [item for item in self._recent if item.outcome is OutcomeKind.COMPLETED]
        return Recent(
            window_s=RECENT_S,
            ended=len(self._recent),
            completed=len(done),
            slo_met=sum(item.slo_met for item in done),
            ttft_ms=tuple(sorted(item.ttft_ms for item in done if item.ttft_ms >= 0)),
            tpot_ms=tuple(sorted(item.tpot_ms for item in done if item.tpot_ms >= 0)),
        )

    def fairness(self, weight_of: Callable[[str], float]) -> Fairness:
        """How evenly tenants were served over the last minute while they competed; requests that still wait are not included."""
        since_s = self._clock.now_s() - RECENT_S
        newest = [item for item in self._recent if item.sent_s >= since_s][-FAIRNESS_OVER:]
        return fairness(_services(newest), {item.tenant: weight_of(item.tenant) for item in newest})


def completion_for(
    request: Request, cost: RequestCost | None, ended: Ended, status: int, reason: str, *, now_s: float, cached_tokens: int = 0
) -> Completion:
    """The record of a request that has ended or was refused.

    Args:
        request: The request.
        cost: Prediction's last answer about it, None without one.
        ended: The scheduler's result.
        status: HTTP status, 499 if the client left.
        reason: What happened; empty if it was served.
        now_s: The time.
        cached_tokens: Prompt tokens that the engine had in its cache.
    """
    predicted = ended.predicted
    return msgspec.structs.replace(
        completion_of(ended, now_s),
        cached_tokens=cached_tokens,
        # Residuals are those of the instance that served the request, if prediction's answer names it.
        predicted_ttft_ms=cost.ttft_ms.get(ended.instance, predicted.ttft_ms) if cost is not None else predicted.ttft_ms,
        predicted_tpot_ms=cost.tpot_ms.get(ended.instance, predicted.tpot_ms) if cost is not None else predicted.tpot_ms,
        slo_met=ended.slo_met or _whole_in_time(request, ended),
        status=status,
        reason=reason,
    )


def _whole_in_time(request: Request, ended: Ended) -> bool:
    """Whether an answer in one piece came within TTFT + TPOT x (l - 1), when its last token was due (H-MAS 3.5).

    Its first token cannot be observed, so `ttft_ms` stays unknown and this deadline replaces both targets.
    """
    if request.stream or ended.kind is not OutcomeKind.COMPLETED or ended.ttft_ms >= 0 or ended.output_tokens < 1:
        return False
    slo = ended.entry.estimates.slo
    return ended.total_ms <= slo.ttft_ms + slo.tpot_ms * (ended.output_tokens - 1)


def _services(completions: Iterable[Completion]) -> Iterable[Service]:
    for one in completions:
        end_s = one.arrival_s + max(0.0, one.total_ms) / 1000.0
        if one.queue_ms < 0.0 or one.output_tokens < 1:
            yield Service(one.tenant, one.arrival_s, end_s, end_s, 0.0)
        else:
            yield Service(one.tenant, one.arrival_s, one.arrival_s + one.queue_ms / 1000.0, end_s, one.prompt_tokens + one.output_tokens)
