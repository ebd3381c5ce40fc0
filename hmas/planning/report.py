"""The report of a run: figures named as in `build/demo.json`, one row per request, and the files that hold them."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

from hmas.controller.core.errors import ConfigError
from hmas.controller.core.slo import BASE_SLO
from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.core.types import OutcomeKind, Request
from hmas.controller.simulation import RequestRecord
from hmas.controller.simulation.result import record_of_unserved
from hmas.loadgen.results import SIMULATED_OUTCOMES, Result, with_record
from hmas.loadgen.score import PERCENTILES, Score, score
from hmas.planning.loads import Load
from hmas.planning.running import Run

VERSION = 1
LONG_TOKENS = 2048
"""Prompt and output tokens together above which a request counts as long in the report's classes."""
COLUMNS = (
    *("request_id", "tenant", "task", "arrival_s", "prompt_tokens", "output_tokens", "outcome", "instance", "policy"),
    *("queue_ms", "ttft_ms", "tpot_ms", "total_ms", "slo_ttft_ms", "slo_tpot_ms", "slo_met", "reason"),
)


class InstanceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One instance over the run.

    Attributes:
        requests: Requests that were sent to it and have ended. good: those that met both targets.
        utilisation: Share of the span in which it computed a step, 0 to 1.
        in_flight_mean: Requests in flight, mean over the span.
        tokens_per_step: Prompt and output tokens per step, mean.
    """

    kind: str
    requests: int
    good: int
    utilisation: float
    in_flight_mean: float
    steps: int
    busy_s: float
    prompt_tokens: int
    generation_tokens: int
    tokens_per_step: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class Report:
    """The evaluated results of a run.

    Attributes:
        results: The records as clients would measure them, and calls that were never sent as shed: they were asked for, and a setting that
            breaks sessions off must not gain by it. If the run was stopped, requests that had not ended are left out.
    """

    run: Run
    results: list[Result]
    score: Score
    instances: dict[str, InstanceFigures]


def make_report(run: Run) -> Report:
    """Scores a run."""
    records = enumerate((*run.records, *map(_never_sent, run.unsent)))
    results = [_result(run.load, i, record) for i, record in records if record.outcome is not None or run.stopped_s is None]
    scored = score(results, warmup_s=run.case.warmup_s, arrivals_end_s=arrivals_end_s(run), run_end_s=run.result.end_s)
    return Report(run=run, results=results, score=scored, instances=_instance_figures(run))


def arrivals_end_s(run: Run) -> float:
    """End of the span in which requests arrived: the end of the workload, or the time at which the run was stopped.

    Sessions begin within the workload's duration, but their calls arrive later: there it is the end of the last call.
    """
    end_s = run.load.duration_s if run.sessions is None else max(run.load.duration_s, _last_end_s(run.records))
    return end_s if run.stopped_s is None else min(end_s, run.stopped_s)


def _last_end_s(records: Sequence[RequestRecord]) -> float:
    return max((record.arrival_s + max(0.0, record.total_ms) / 1000.0 for record in records), default=0.0)


def _instance_figures(run: Run) -> dict[str, InstanceFigures]:
    """Figures by instance, in the fleet's order."""
    first_s = run.records[0].arrival_s if run.records else 0.0
    span_s = max(_last_end_s(run.records) - first_s, 1e-9)
    sent: dict[str, list[RequestRecord]] = {name: [] for name in run.instances}
    for record in run.records:
        if record.instance:
            sent[record.instance].append(record)
    found = {}
    for name, kind in run.instances.items():
        totals, records = run.result.engines[name], sent[name]
        found[name] = InstanceFigures(
            kind=kind.name,
            requests=len(records),
            good=sum(record.slo_met for record in records),
            utilisation=min(1.0, totals.busy_s / span_s),
            in_flight_mean=sum(record.total_ms - record.queue_ms for record in records) / 1000.0 / span_s,
            steps=totals.steps,
            busy_s=totals.busy_s,
            prompt_tokens=totals.prompt_tokens,
            generation_tokens=totals.generation_tokens,
            tokens_per_step=(totals.prompt_tokens + totals.generation_tokens) / totals.steps if totals.steps else 0.0,
            preemptions=totals.preemptions,
        )
    return found


def document(report: Report) -> dict[str, Any]:
    """The whole report. It contains nothing about the machine or the time, so the same case gives the same bytes."""
    run, case = report.run, report.run.case
    return {
        "version": VERSION,
        "interrupted": run.stopped_s is not None,
        "case": case.document(),
        "workload": {
            "name": run.load.name,
            "requests": run.load.count,
            "duration_s": run.load.duration_s,
            "rate_rps": run.load.rate_rps,
        },
        "simulated": {
            "requests": len(run.records),
            "unfinished": sum(record.outcome is None for record in run.records),
            "stopped_s": run.stopped_s,
            "end_s": run.result.end_s,
        },
        **msgspec.to_builtins(report.score),
        "instances": {name: msgspec.to_builtins(one) for name, one in report.instances.items()},
        **_session_figures(run),
        "cost_per_hour": case.fleet.price,
        "agents": {"actions": run.actions, "policy_changes": msgspec.to_builtins(run.changes)},
        "violations": run.violations,
    }


def _session_figures(run: Run) -> dict[str, Any]:
    """Number of ended sessions, number of those with all calls answered, and their durations; empty if there are no sessions."""
    if run.sessions is None:
        return {}
    took_s = sorted(one.end_s - one.start_s for one in run.sessions if one.completed)
    quantiles = {f"p{q}": percentile(took_s, q) for q in PERCENTILES}
    return {"sessions": {"ended": len(run.sessions), "completed": len(took_s), "duration_s": quantiles}}


def rounded(value: Any, digits: int = 6) -> Any:
    """A document with rounded floats, so that it is the same on every machine."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list | tuple) else value


def write_requests(run: Run, handle: TextIO) -> None:
    """Writes CSV with a header and one row per simulated request; times in seconds and milliseconds."""
    writer = csv.writer(handle, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(run))


def _rows(run: Run) -> Iterable[tuple[object, ...]]:
    for i, record in enumerate(run.records):
        slo = record.slo
        yield (
            *(record.request_id, record.tenant, run.load.task(i, record.request_id).value, f"{record.arrival_s:.6f}", record.prompt_tokens),
            *(record.output_tokens, record.outcome.value if record.outcome else "unfinished", record.instance, record.policy),
            *(f"{value:.3f}" for value in (record.queue_ms, record.ttft_ms, record.tpot_ms, record.total_ms)),
            *("" if slo is None else f"{value:g}" for value in ((slo.ttft_ms, slo.tpot_ms) if slo else (0.0, 0.0))),
            int(record.slo_met),
            record.reason,
        )


def _never_sent(request: Request) -> RequestRecord:
    reason = "never sent: an earlier call of its session was not answered"
    return msgspec.structs.replace(record_of_unserved(request), outcome=OutcomeKind.SHED, total_ms=0.0, reason=reason)


def _result(load: Load, index: int, record: RequestRecord) -> Result:
    task, wanted_tokens = load.task(index, record.request_id), load.wanted_tokens(index, record.request_id)
    result = Result(
        index=index,
        at_s=record.arrival_s,
        kind=load.kind,
        tenant=record.tenant,
        task_type=task,
        size="long" if record.prompt_tokens + wanted_tokens >= LONG_TOKENS else "short",
        prompt_tokens=record.prompt_tokens,
        wanted_tokens=wanted_tokens,
        slo=record.slo or BASE_SLO[task],
    )
    # Clients do not wait for ever: a request that has not ended ten minutes after the last arrival counts as given up by its client.
    return with_record(
        result,
        record,
        outcome="timed_out" if record.outcome is None else SIMULATED_OUTCOMES[record.outcome],
        detail=record.reason if record.outcome else "unfinished when the simulation ended",
    )


def write_run(report: Report, whole: dict[str, Any], out: Path, *, requests: bool, plots: bool) -> None:
    """Writes report.json (`whole`, the report's document), requests.csv and plots of one run.

    Raises:
        ConfigError: A file cannot be written.
    """
    write_json(out / "report.json", whole)
    if requests:
        with opened(out / "requests.csv") as handle:
            write_requests(report.run, handle)
    if plots:
        from hmas.planning import charts  # noqa: PLC0415 - Matplotlib takes a while to import

        charts.latencies(out / "latency.svg", report.results)
        charts.timeline(out / "timeline.svg", report.results, arrivals_end_s(report.run))
        charts.instances(out / "instances.svg", report.instances)


def write_json(path: Path, whole: Any) -> None:
    """Writes a JSON document.

    Raises:
        ConfigError: It cannot be written.
    """
    with opened(path) as handle:
        handle.write(json.dumps(whole, indent=1) + "\n")


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Opens a text file for writing; creates its folder if it does not exist."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as handle:
            yield handle
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
