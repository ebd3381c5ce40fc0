"""The long view: workload and outcomes over the aggregation window (H-MAS 3.3, C.1). Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from agents.qos.outcomes import fairness, served_late, shares
from agents.qos.windows import summarize, variation
from controller.core.messages import Completion, LongView, SystemSnapshot
from controller.core.objectives import percentile
from controller.core.types import OutcomeKind

LABELS_MAX = 32
"""Task types and tenants named in a view; the rest is added up as `other`."""
LONG_OVER_MEAN = 2.0
"""A request is long when its service takes more than this many times the mean."""


def build_long_view(
    snapshot: SystemSnapshot,
    ended: Sequence[Completion],
    arrived: Sequence[tuple[float, int]],
    mismatches: Sequence[float],
    *,
    more_overdue: int,
    window_s: float,
    weights: Mapping[str, float],
    now_s: float,
) -> LongView:
    """Builds V_long.

    Args:
        snapshot: The newest one.
        ended: Requests that ended within the window.
        arrived: (time, arrivals since the gateway's start), in order of time.
        mismatches: Scores of Eq. 7 within the window, one a second.
        more_overdue: Growth of the number of overdue waiting requests over the window.
        window_s: How much of the window has been watched, more than 0.
        weights: Tenants' weights.
        now_s: Stamped on the view.
    """
    missed = shares(ended, more_overdue)
    arrivals = arrived[-1][1] - arrived[0][1] if arrived else 0
    arrival_rps = arrivals / window_s
    service_ms = [c.total_ms - c.queue_ms for c in ended if c.outcome is OutcomeKind.COMPLETED and c.queue_ms >= 0]
    mean_ms = sum(service_ms) / len(service_ms) if service_ms else 0.0
    return LongView(
        sent_s=now_s,
        window_s=window_s,
        policy=snapshot.policy,
        arrived=arrivals,
        ended=missed.judged,
        arrival_rps=arrival_rps,
        arrival_cv=variation(_gaps([c.arrival_s for c in ended])),
        burst_ratio=_burst_rps(arrived) / arrival_rps if arrival_rps > 0 else 0.0,
        prompt_mean=_mean(c.prompt_tokens for c in ended),
        output_mean=_mean(c.output_tokens for c in ended if c.outcome is OutcomeKind.COMPLETED),
        total_cv=variation(service_ms),
        long_share=sum(value > LONG_OVER_MEAN * mean_ms for value in service_ms) / max(1, len(service_ms)),
        long_backlog=max(0, snapshot.queued_long),
        queued=max(0, snapshot.queued),
        ttft_ms=summarize(c.ttft_ms for c in ended),
        tpot_ms=summarize(c.tpot_ms for c in ended),
        violation_rate=missed.missed,
        ttft_violation_rate=missed.ttft,
        tpot_violation_rate=missed.tpot,
        deadline_miss_share=missed.queue,
        goodput_rps=missed.met / window_s,
        goodput_rate=1.0 - missed.missed if missed.judged else 0.0,
        mismatch=_mean(mismatches),
        mismatch_p95=percentile(sorted(mismatches), 95),
        fairness=fairness(ended, weights),
        by_task=_mix(str(c.task_type) for c in ended),
        by_tenant=_mix(c.tenant for c in ended),
        forced=snapshot.forced,
        late_service=_mean(served_late(c) for c in ended if c.queue_ms >= 0),
    )


def _mean(values: Iterable[float]) -> float:
    held = list(values)
    return sum(held) / len(held) if held else 0.0


def _gaps(arrivals_s: list[float]) -> list[float]:
    arrivals_s.sort()
    return [later - earlier for earlier, later in pairwise(arrivals_s)]


def _burst_rps(arrived: Sequence[tuple[float, int]]) -> float:
    """Largest arrival rate over any second, from the counter's readings; over the whole span where that is shorter."""
    best = 0.0
    start = 0
    for at_s, total in arrived:
        while start + 1 < len(arrived) and arrived[start + 1][0] <= at_s - 1.0:
            start += 1
        span_s = at_s - arrived[start][0]
        best = max(best, (total - arrived[start][1]) / max(1.0, span_s))
    return best


def _mix(labels: Iterable[str]) -> dict[str, float]:
    """Share of each label, the most frequent ones by name."""
    counts = Counter(labels)
    total = max(1, counts.total())
    named = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    mix = {label: number / total for label, number in named[:LABELS_MAX]}
    if len(named) > LABELS_MAX:
        mix["other"] = sum(number for _, number in named[LABELS_MAX:]) / total
    return mix
