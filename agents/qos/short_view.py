"""The short view: the present state (H-MAS 3.3). Pure."""

from collections.abc import Sequence

from hmas.agents.qos import counters as col
from hmas.agents.qos.outcomes import shares
from hmas.agents.qos.readings import Readings, utilization
from hmas.agents.qos.sketch import Counts
from hmas.agents.qos.tallies import tally
from hmas.controller.core.messages import Completion, LatencySummary, ShortView, SystemSnapshot
from hmas.controller.core.messages.views import TelemetryCounts


def build_short_view(
    snapshot: SystemSnapshot,
    row: Counts,
    readings: Readings,
    *,
    recent: list[Completion],
    anomalies: Sequence[str],
    telemetry: TelemetryCounts,
    window_s: float,
    span_s: float,
    at_s: float,
    sent_s: float,
) -> ShortView:
    """Builds V_short from the newest snapshot and the counts of the short window.

    `span_s` is the covered part of the configured `window_s`, more than 0; by `at_s`, the time of the telemetry, an engine's figures count
    as fresh; `sent_s` is the time stamp of the view.
    """
    settled = tally(row)
    missed = shares(settled)
    rates = readings.rates()
    full = {view.name: utilization(view, at_s) for view in snapshot.instances}
    fallbacks = [f"kv_usage:{name}" for name, one in full.items() if not one.measured]
    output_tps = rates.output_tps
    if output_tps is None:
        fallbacks.append("throughput")
        output_tps = int(row[col.PRODUCED]) / span_s
    return ShortView(
        sent_s=sent_s,
        window_s=window_s,
        policy=snapshot.policy,
        queued=max(0, snapshot.queued),
        oldest_wait_ms=max(0.0, snapshot.oldest_wait_ms),
        queue_slope=readings.queue_slope(),
        ended=int(settled.judged),
        ttft_ms=latencies(row[col.TTFT : col.TPOT]),
        tpot_ms=latencies(row[col.TPOT : col.JUDGED]),
        violation_rate=missed.missed,
        ttft_violation_rate=missed.ttft,
        tpot_violation_rate=missed.tpot,
        goodput_rps=settled.met / span_s,
        throughput_tps=output_tps,
        utilization={name: one.value for name, one in full.items()},
        instances=snapshot.instances,
        recent=recent,
        forced=snapshot.forced,
        arrival_rps=rates.arrival_rps,
        anomalies=list(anomalies),
        fallbacks=fallbacks,
        span_s=span_s,
        overdue=max(0, snapshot.overdue),
        running=sum(max(0, view.in_flight) for view in snapshot.instances),
        kv_usage={name: one.kv for name, one in full.items()},
        utilization_source={name: one.source for name, one in full.items()},
        telemetry=telemetry,
    )


def latencies(counts: Counts) -> LatencySummary:
    """Returns quantiles of a sketch of latencies."""
    p50, p95, p99 = col.TIMES.percentiles(counts, (50, 95, 99))
    return LatencySummary(count=int(counts.sum()), p50=p50, p95=p95, p99=p99)
