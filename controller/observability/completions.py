"""Reports requests that have ended: to the agents, to the metrics, and to operators as figures of the last minute."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.core.fairness import Fairness
from hmas.controller.core.messages import Completion, RequestCost
from hmas.controller.core.types import Estimates, OutcomeKind, Request
from hmas.controller.observability.metrics import Metrics
from hmas.controller.observability.tenant_fairness import recent_fairness
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.scheduler import Ended, Refusal

RECENT_S = 60.0
RECENT_KEPT = 5_000


@dataclass(frozen=True, slots=True)
class Recent:
    """Figures of the last minute, for operators."""

    window_s: float
    ended: int
    completed: int
    slo_met: int
    ttft_ms: tuple[float, ...] = field(repr=False)
    tpot_ms: tuple[float, ...] = field(repr=False)


class CompletionRecorder:
    """Records each ending once: on the bus, in the history that provides first estimates, and in the metrics."""

    def __init__(self, *, bus: Bus, history: History, metrics: Metrics, clock: Clock, weight_of: Callable[[str], float]) -> None:
        self._bus = bus
        self._history = history
        self._metrics = metrics
        self._clock = clock
        self._weight_of = weight_of
        self._recent: deque[Completion] = deque(maxlen=RECENT_KEPT)

    def ended(
        self, request: Request, cost: RequestCost | None, ended: Ended, status: int, reason: str, *, now_s: float, cached_tokens: int = 0
    ) -> Completion:
        """Records the ending of an admitted request. `cost`: prediction's last answer about it."""
        predicted = ended.predicted
        completion = msgspec.structs.replace(
            completion_of(ended, now_s),
            cached_tokens=cached_tokens,
            # Residuals are those of the instance that served the request, if prediction's answer names it.
            predicted_ttft_ms=cost.ttft_ms.get(ended.instance, predicted.ttft_ms) if cost is not None else predicted.ttft_ms,
            predicted_tpot_ms=cost.tpot_ms.get(ended.instance, predicted.tpot_ms) if cost is not None else predicted.tpot_ms,
            slo_met=ended.slo_met or _whole_in_time(request, ended),
            status=status,
            reason=reason,
        )
        return self._file(completion)

    def refused(self, request: Request, estimates: Estimates, refusal: Refusal, policy: str, now_s: float) -> Completion:
        """Records a request that was not admitted to the queue."""
        return self._file(
            Completion(
                request_id=request.id,
                sent_s=now_s,
                tenant=request.tenant,
                model=request.model,
                outcome=refusal.kind,
                arrival_s=request.arrival_s,
                policy=policy,
                prompt_tokens=request.prompt_tokens,
                total_ms=(now_s - request.arrival_s) * 1000.0,
                ttft_slo_ms=estimates.slo.ttft_ms,
                tpot_slo_ms=estimates.slo.tpot_ms,
                status=refusal.status,
                reason=refusal.message,
            )
        )

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

    def fairness(self) -> Fairness:
        """How evenly tenants were served over the last minute while they competed."""
        since_s = self._clock.now_s() - RECENT_S
        return recent_fairness((item for item in self._recent if item.sent_s >= since_s), self._weight_of)

    def _file(self, completion: Completion) -> Completion:
        self._bus.post(completion)
        self._history.learn(completion)
        self._metrics.ended(completion)
        self._recent.append(completion)
        return completion


def _whole_in_time(request: Request, ended: Ended) -> bool:
    """Whether an answer in one piece came within TTFT + TPOT x (l - 1), when its last token was due (H-MAS 3.5).

    Its first token cannot be observed, so `ttft_ms` stays unknown and this deadline replaces both targets.
    """
    if request.stream or ended.kind is not OutcomeKind.COMPLETED or ended.ttft_ms >= 0 or ended.output_tokens < 1:
        return False
    slo = ended.entry.estimates.slo
    return ended.total_ms <= slo.ttft_ms + slo.tpot_ms * (ended.output_tokens - 1)
