"""The long view: workload and outcomes over the aggregation window (H-MAS 3.3, C.1). Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from hmas.agents.qos import counters as col
from hmas.agents.qos.outcomes import fairness, shares
from hmas.agents.qos.short_view import latencies
from hmas.agents.qos.sketch import Counts
from hmas.agents.qos.tallies import Tallies, tally
from hmas.agents.qos.windows import variation
from hmas.controller.core.messages import LongView, SystemSnapshot
from hmas.controller.core.messages.views import ChangePoint, LengthSummary, TelemetryCounts
from hmas.controller.core.statistics.quantiles import percentile

LABELS_MAX = 32
"""Most tenants or task types named in a view; the others are summed as `other`."""
LONG_OVER_MEAN = 2.0
"""A request is long if its service takes more than this many times the mean."""


def build_long_view(
    snapshot: SystemSnapshot,
    tallies: Tallies,
    mismatches: Sequence[float],
    *,
    changes: list[ChangePoint],
    telemetry: TelemetryCounts,
    span_s: float,
    arrivals_span_s: float,
    sent_s: float,
) -> LongView:
    """Builds V_long from the newest snapshot and what was counted within the window: `mismatches` has a score of Eq. 7 per second.

    `span_s` is the observed part of the window, more than 0, and `arrivals_span_s` the part under the present gateway, which counts
    arrivals; `sent_s` is the time stamp of the view.
    """
    row = tallies.long.total()
    settled = tally(row)
    missed = shares(settled)
    service = row[col.SERVICE : col.PROMPT]
    arrived = int(row[col.ARRIVED])
    arrival_rps = arrived / arrivals_span_s
    peak_rps = float(tallies.long.columns(col.PEAK, col.PEAK).max()) / 1000.0
    senders = tallies.tenants()
    fair, tenants = fairness(senders.held, snapshot.tenant_weights)
    return LongView(
        sent_s=sent_s,
        window_s=span_s,
        policy=snapshot.policy,
        arrived=arrived,
        ended=int(settled.judged),
        arrival_rps=arrival_rps,
        arrival_cv=variation(tallies.gaps_s()),
        burst_ratio=peak_rps / arrival_rps if arrival_rps > 0 else 0.0,
        prompt_mean=_ratio(row, col.PROMPT_SUM, col.ENDED),
        output_mean=_ratio(row, col.OUTPUT_SUM, col.COMPLETED),
        total_cv=col.TIMES.variation(service),
        long_share=col.TIMES.share_above(service, LONG_OVER_MEAN * col.TIMES.mean(service)),
        long_backlog=max(0, snapshot.queued_long),
        queued=max(0, snapshot.queued),
        ttft_ms=latencies(row[col.TTFT : col.TPOT]),
        tpot_ms=latencies(row[col.TPOT : col.JUDGED]),
        violation_rate=missed.missed,
        ttft_violation_rate=missed.ttft,
        tpot_violation_rate=missed.tpot,
        deadline_miss_share=missed.queue,
        goodput_rps=settled.met / span_s,
        goodput_rate=1.0 - missed.missed if settled.judged else 0.0,
        mismatch=sum(mismatches) / len(mismatches) if mismatches else 0.0,
        mismatch_p95=percentile(sorted(mismatches), 95),
        fairness=fair,
        fairness_tenants=tenants,
        by_task=_mix({task: int(row[col.TASK + number]) for number, task in enumerate(col.TASKS)}, int(row[col.TASK : col.SERVICE].sum())),
        by_tenant=_mix({name: share.count for name, share in senders.held.items()}, senders.total),
        forced=snapshot.forced,
        late_service=_ratio(row, col.SERVED_LATE, col.DISPATCHED),
        arrival_dispersion=_dispersion(tallies, arrivals_span_s),
        prompt_tokens=_lengths(row[col.PROMPT : col.OUTPUT]),
        output_tokens=_lengths(row[col.OUTPUT :]),
        changes=changes,
        tenant_error=senders.error / senders.total if senders.total else 0.0,
        telemetry=telemetry,
    )


def _ratio(row: Counts, number: int, of: int) -> float:
    return float(row[number] / row[of]) if row[of] else 0.0


def _lengths(counts: Counts) -> LengthSummary:
    p50, p90, p99 = col.TOKENS.percentiles(counts, (50, 90, 99))
    return LengthSummary(count=int(counts.sum()), p50=p50, p90=p90, p99=p99, cv=col.TOKENS.variation(counts))


def _dispersion(tallies: Tallies, watched_s: float) -> float:
    """Returns variance over mean of the arrivals in whole sub-windows; 0 with fewer than two or no arrivals.

    The newest sub-window has not ended yet, and the oldest observed one may have begun before the observation.
    """
    ring = tallies.long
    whole = min(ring.rows - 1, int(watched_s / ring.pane_s) - 1)
    if whole < 2:
        return 0.0
    arrived = ring.columns(col.ARRIVED, col.ARRIVED)[-1 - whole : -1, 0]
    mean = float(arrived.mean())
    return float(np.var(arrived, ddof=1)) / mean if mean > 0.0 else 0.0


def _mix(counts: Mapping[str, int], total: int) -> dict[str, float]:
    """Returns the share of each label; only the most frequent ones have their names."""
    named = sorted(((label, number) for label, number in counts.items() if number), key=lambda item: (-item[1], item[0]))[:LABELS_MAX]
    mix = {label: number / total for label, number in named}
    rest = total - sum(number for _, number in named)
    return mix | {"other": rest / total} if rest > 0 else mix
