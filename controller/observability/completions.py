"""The records of requests that have ended: made once, posted to the agents, and summed up for operators over the last minute."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.core.fairness import Fairness, Service, fairness
from hmas.controller.core.messages import RequestCost
from hmas.controller.core.types import OutcomeKind
from hmas.controller.observability.observer import Completion, Observer
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.queue.flood_watch import service_of
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.results import Ended

RECENT_S = 60.0
RECENT_KEPT = 5_000
PRUNE_LEAST = 128
FAIRNESS_OVER = 1000
"""Most completions over which fairness is computed, which bounds the time to a few milliseconds."""
TENANT_KEPT = 1000
"""Most completions kept of one tenant: a flood by one leaves the figures of the others whole."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Figures of the last minute, for operators. `service`: what those that were served took from the engines, in
    prompt tokens.
    """

    window_s: float = RECENT_S
    ended: int = 0
    completed: int = 0
    slo_met: int = 0
    service: float = 0.0
    ttft_ms: tuple[float, ...] = field(default=(), repr=False)
    tpot_ms: tuple[float, ...] = field(default=(), repr=False)


class CompletionRecorder(Observer):
    """Posts every completion to the agents, and keeps those of the last minute."""

    def __init__(self, bus: Bus, clock: Clock, label_of: Callable[[str], str]) -> None:
        """Starts empty. `label_of`: the label under which a tenant is counted; their number is bounded."""
        self._bus = bus
        self._clock = clock
        self._started_s = clock.now_s()
        self._label_of = label_of
        self._recent: deque[Completion] = deque(maxlen=RECENT_KEPT)
        self._of_tenant: dict[str, deque[Completion]] = {}
        self._prune_at = PRUNE_LEAST

    def ended(self, completion: Completion) -> None:
        """See `Observer.ended`."""
        self._bus.post(completion)
        self._recent.append(completion)
        label = self._label_of(completion.tenant)
        mine = self._of_tenant.get(label)
        if mine is None:
            if len(self._of_tenant) >= self._prune_at:
                # Labels pass from one tenant to the next, so that those of quiet tenants would pile up.
                self._prune_at = max(PRUNE_LEAST, 2 * len(self.labels()))
            mine = self._of_tenant[label] = deque(maxlen=TENANT_KEPT)
        mine.append(completion)
        while mine[0].sent_s < completion.sent_s - RECENT_S:
            mine.popleft()

    def recent(self) -> Recent:
        """Figures of the last minute."""
        return _figures(self._recent, self._clock.now_s())

    def classes(self) -> dict[str, Any]:
        """Goodput of the last minute by task type, in one pass."""
        window_s = _window_s(self._recent, self._clock.now_s())
        classes: dict[str, dict[str, Any]] = {}
        for item in self._recent:
            one = classes.setdefault(item.task_type.value, {"ended": 0, "slo_met": 0})
            one["ended"] += 1
            one["slo_met"] += item.slo_met
        for one in classes.values():
            one["goodput_rate"] = one["slo_met"] / one["ended"]
        return {"window_s": window_s, "classes": classes}

    def labels(self) -> list[str]:
        """Tenants with a request that ended in the last minute. O(tenants)."""
        since_s = self._clock.now_s() - RECENT_S
        self._of_tenant = {label: mine for label, mine in self._of_tenant.items() if mine and mine[-1].sent_s >= since_s}
        return list(self._of_tenant)

    def tenants(self) -> dict[str, Recent]:
        """The figures of the last minute by tenant, of those with a request that ended in it. O(n log n) in these requests."""
        now_s = self._clock.now_s()
        found = {label: _figures(mine, now_s) for label, mine in self._of_tenant.items()}
        return {label: one for label, one in found.items() if one.ended}

    def good_rps(self) -> dict[str, float]:
        """Requests within their targets per second, of the last minute, by the instance that served them."""
        now_s = self._clock.now_s()
        window_s = max(1.0, min(_window_s(self._recent, now_s), now_s - self._started_s))
        met = Counter(item.instance for item in self._recent if item.slo_met)
        return {instance: number / window_s for instance, number in met.items()}

    def fairness(self, weight_of: Callable[[str], float]) -> Fairness:
        """How evenly tenants were served over the last minute while they competed; requests that still wait are not included."""
        since_s = self._clock.now_s() - RECENT_S
        newest = [item for item in self._recent if item.sent_s >= since_s][-FAIRNESS_OVER:]
        return fairness(_services(newest), {item.tenant: weight_of(item.tenant) for item in newest})


def goodput(recent: Recent, window_s: float) -> dict[str, Any]:
    """The goodput of some requests as JSON values."""
    return {
        "window_s": window_s,
        "ended": recent.ended,
        "completed": recent.completed,
        "slo_met": recent.slo_met,
        "goodput_rps": recent.slo_met / window_s,
        "goodput_rate": recent.slo_met / recent.ended if recent.ended else None,
        "ttft_ms": _quantiles(recent.ttft_ms),
        "tpot_ms": _quantiles(recent.tpot_ms),
    }


def completion_for(
    cost: RequestCost | None,
    ended: Ended,
    status: int,
    reason: str,
    *,
    now_s: float,
    cached_tokens: int = 0,
    asked: bool = True,
) -> Completion:
    """The record of a request that has ended or was refused.

    Args:
        cost: Prediction's last answer about it, None without one.
        ended: The scheduler's result.
        status: HTTP status, 499 if the client left.
        reason: What happened; empty if it was served.
        now_s: The time.
        cached_tokens: Prompt tokens that the engine had in its cache.
        asked: As in `Completion`.
    """
    predicted = ended.predicted
    return msgspec.structs.replace(
        completion_of(ended, now_s),
        cached_tokens=cached_tokens,
        asked=asked,
        # Residuals are those of the instance that served the request, if prediction's answer names it.
        predicted_ttft_ms=cost.ttft_ms.get(ended.instance, predicted.ttft_ms) if cost is not None else predicted.ttft_ms,
        predicted_tpot_ms=cost.tpot_ms.get(ended.instance, predicted.tpot_ms) if cost is not None else predicted.tpot_ms,
        status=status,
        reason=reason,
    )


def _figures(kept: deque[Completion], now_s: float) -> Recent:
    """Sums up the completions of the last minute, oldest first; drops older ones."""
    window_s = _window_s(kept, now_s)
    done = [item for item in kept if item.outcome is OutcomeKind.COMPLETED]
    return Recent(
        window_s=window_s,
        ended=len(kept),
        completed=len(done),
        slo_met=sum(item.slo_met for item in done),
        service=sum(service_of(item.prompt_tokens, item.output_tokens) for item in kept if item.output_tokens),
        ttft_ms=tuple(sorted(item.ttft_ms for item in done if item.ttft_ms >= 0)),
        tpot_ms=tuple(sorted(item.tpot_ms for item in done if item.tpot_ms >= 0)),
    )


def _window_s(kept: deque[Completion], now_s: float) -> float:
    """Drops completions that are older than a minute; returns how long the others span. A full deque may hold less than a minute."""
    while kept and kept[0].sent_s < now_s - RECENT_S:
        kept.popleft()
    return max(1.0, now_s - kept[0].sent_s) if len(kept) == kept.maxlen else RECENT_S


def _quantiles(ordered: Sequence[float]) -> dict[str, float | None]:
    """p50, p95 and p99 of an ordered sequence; None if it is empty."""
    if not ordered:
        return {"p50": None, "p95": None, "p99": None}
    return {f"p{share}": ordered[min(len(ordered) - 1, share * len(ordered) // 100)] for share in (50, 95, 99)}


def _services(completions: Iterable[Completion]) -> Iterable[Service]:
    for one in completions:
        end_s = one.arrival_s + max(0.0, one.total_ms) / 1000.0
        if one.queue_ms < 0.0 or one.output_tokens < 1:
            yield Service(one.tenant, one.arrival_s, end_s, end_s, 0.0)
        else:
            yield Service(one.tenant, one.arrival_s, one.arrival_s + one.queue_ms / 1000.0, end_s, one.prompt_tokens + one.output_tokens)
