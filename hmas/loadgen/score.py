"""Computes the figures for comparing runs from the clients' results."""

from collections.abc import Callable, Sequence

import msgspec

from hmas.controller.core.fairness import Fairness, Service, fairness
from hmas.controller.core.objectives import goodput_rate, goodput_rps, jain, service_gain
from hmas.controller.core.statistics.quantiles import percentile
from hmas.loadgen.results import Result, count_outcomes, is_good

PERCENTILES = (50, 95, 99)
REFUSED = ("rejected", "shed", "timed_out")


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds, with linear interpolation; 0 if there are no values."""

    p50: float
    p95: float
    p99: float


class ClassScore(msgspec.Struct, frozen=True, kw_only=True):
    """One class of requests: their number, and the number and share that met both targets."""

    submitted: int
    good: int
    goodput_rate: float
    ttft_ms_p95: float


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run over the requests that arrived after the warm-up.

    Attributes:
        span_s: From the warm-up's end to the end of the arrivals; all rates are per second of it.
        submitted: Scored requests. Refused, shed, failed and never started requests count in every denominator.
        good: Requests that met both targets (H-MAS Eq. 1): completed, TTFT and TPOT within the targets; see `is_good`.
        goodput_rps: good / span_s ("goodput" of `vllm bench serve`). goodput_rate: good / submitted (Eq. 9).
        esg: Sum of service gains (Eq. 6). esg_rate: per second.
        throughput_rps: Completions that ended within the span, per second of it. output_tps: their output tokens likewise. Good requests
            count whenever they end, so goodput_rps can be higher.
        ttft_ms: A request that never got a first token counts as having waited until the run's end; otherwise the figures would cover
            only successful requests. `ttft_ms_started` leaves such requests out.
        tpot_ms: Over completed requests with two tokens or more.
        ttft_compliance, tpot_compliance: Share of all scored requests that completed and met the target; one that was not streamed
            meets both or neither.
        rejected: Requests refused with an answer: rejected, shed or timed out, listed separately in `outcomes`.
        lost: Requests without an answer, or with one that broke off without an error. Any value above 0 is a defect.
        per_class: By kind and size, such as `conv-long`. per_task, per_tenant: likewise.
        jain_tenants, jain_classes: Jain's index over their goodput rates.
        fairness: How evenly tenants were served while they competed, in tokens per weight.
    """

    span_s: float
    submitted: int
    completed: int
    rejected: int
    failed: int
    lost: int
    good: int
    goodput_rps: float
    goodput_rate: float
    esg: float
    esg_rate: float
    throughput_rps: float
    output_tps: float
    ttft_ms: Percentiles
    ttft_ms_started: Percentiles
    tpot_ms: Percentiles
    ttft_compliance: float
    tpot_compliance: float
    outcomes: dict[str, int]
    per_class: dict[str, ClassScore]
    per_task: dict[str, ClassScore]
    per_tenant: dict[str, ClassScore]
    jain_tenants: float
    jain_classes: float
    fairness: Fairness


def score(results: Sequence[Result], *, warmup_s: float, arrivals_end_s: float, run_end_s: float) -> Score:
    """Scores a run.

    Args:
        results: One result per arrival.
        warmup_s: Requests that arrived before this are not scored.
        arrivals_end_s: End of the span in which requests arrived.
        run_end_s: When the last answer ended, or waiting ended; seconds from the run's start, like the others.
    """
    scored = [r for r in results if r.at_s >= warmup_s]
    span_s = max(arrivals_end_s - warmup_s, 1e-9)
    completed = [r for r in scored if r.outcome == "completed"]
    good = sum(map(is_good, scored))
    in_span = [r for r in results if r.outcome == "completed" and warmup_s <= r.at_s + r.total_ms / 1000.0 <= arrivals_end_s]
    gains = sum(map(_gain, completed))
    outcomes = count_outcomes(scored)
    per_class = _grouped(scored, lambda r: f"{r.kind}-{r.size}", run_end_s)
    per_tenant = _grouped(scored, lambda r: r.tenant, run_end_s)
    return Score(
        span_s=span_s,
        submitted=len(scored),
        completed=len(completed),
        rejected=sum(outcomes[name] for name in REFUSED),
        failed=outcomes["failed"],
        lost=outcomes["lost"],
        good=good,
        goodput_rps=goodput_rps(good, span_s),
        goodput_rate=goodput_rate(good, len(scored)),
        esg=gains,
        esg_rate=gains / span_s,
        throughput_rps=len(in_span) / span_s,
        output_tps=sum(r.output_tokens for r in in_span) / span_s,
        ttft_ms=_percentiles(_waited_ms(scored, run_end_s)),
        ttft_ms_started=_percentiles([r.ttft_ms for r in scored if r.ttft_ms >= 0]),
        tpot_ms=_percentiles([r.tpot_ms for r in completed if r.tpot_ms >= 0]),
        ttft_compliance=goodput_rate(sum(0 <= r.ttft_ms <= r.slo.ttft_ms if r.streamed else is_good(r) for r in completed), len(scored)),
        tpot_compliance=goodput_rate(sum(r.tpot_ms <= r.slo.tpot_ms if r.streamed else is_good(r) for r in completed), len(scored)),
        outcomes=outcomes,
        per_class=per_class,
        per_task=_grouped(scored, lambda r: r.task_type.value, run_end_s),
        per_tenant=per_tenant,
        jain_tenants=jain(c.goodput_rate for c in per_tenant.values()),
        jain_classes=jain(c.goodput_rate for c in per_class.values()),
        fairness=fairness(_service(r, run_end_s) for r in scored),
    )


def _gain(result: Result) -> float:
    """Eq. 6 for a completed request. For an answer that is not streamed, the total time takes the place of TTFT."""
    ttft_ms = result.ttft_ms if result.streamed else result.total_ms
    return service_gain(result.prompt_tokens, result.output_tokens, ttft_ms, result.tpot_ms, result.slo)


def _service(result: Result, run_end_s: float) -> Service:
    """The service of a request. If its time in the queue is unknown, it counts as waiting until its first token, or its end."""
    waited_ms = result.queue_ms if result.queue_ms >= 0.0 else result.ttft_ms
    end_s = result.at_s + max(0.0, result.total_ms) / 1000.0
    if result.total_ms < 0.0 and result.outcome in ("timed_out", "lost"):
        end_s = max(end_s, run_end_s)
    if waited_ms < 0.0 or result.ttft_ms < 0.0:
        return Service(result.tenant, result.at_s, end_s, end_s, 0.0)
    tokens = result.prompt_tokens + result.output_tokens
    return Service(result.tenant, result.at_s, result.at_s + waited_ms / 1000.0, end_s, tokens)


def _waited_ms(results: Sequence[Result], run_end_s: float) -> list[float]:
    """Times to the first token. A completed answer that was not streamed has none and is left out."""
    seen = [r for r in results if r.streamed or r.outcome != "completed"]
    return [r.ttft_ms if r.ttft_ms >= 0 else max(0.0, run_end_s - r.at_s) * 1000.0 for r in seen]


def _percentiles(values: Sequence[float]) -> Percentiles:
    ordered = sorted(values)
    return Percentiles(**{f"p{q}": round(percentile(ordered, q), 2) for q in PERCENTILES})


def _grouped(results: Sequence[Result], key: Callable[[Result], str], run_end_s: float) -> dict[str, ClassScore]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return {name: _class_score(groups[name], run_end_s) for name in sorted(groups)}


def _class_score(results: Sequence[Result], run_end_s: float) -> ClassScore:
    good = sum(map(is_good, results))
    return ClassScore(
        submitted=len(results),
        good=good,
        goodput_rate=round(goodput_rate(good, len(results)), 4),
        ttft_ms_p95=round(percentile(sorted(_waited_ms(results, run_end_s)), 95), 1),
    )


def running_goodput(results: Sequence[Result], step_s: float, until_s: float) -> list[tuple[float, float]]:
    """(time, good completions per second) in steps of `step_s`, by end time; for plots."""
    counts: dict[int, int] = {}
    for result in results:
        if is_good(result):
            step = int((result.at_s + result.total_ms / 1000.0) / step_s)
            counts[step] = counts.get(step, 0) + 1
    return [((i + 1) * step_s, counts.get(i, 0) / step_s) for i in range(int(until_s / step_s))]


def fairness_words(found: Fairness) -> str:
    """Fairness as a line of text."""
    if len(found.rates) < 2:
        return "no two tenants had requests waiting at the same time for long enough to tell"
    return (
        f"Jain {found.jain:.3f}, worst over best {found.max_min:.3f}, while {len(found.rates)} tenants waited ({found.contended_s:.0f} s)"
    )
