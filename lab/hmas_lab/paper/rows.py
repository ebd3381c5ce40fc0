"""One simulated run as a task, what it came to as a row, and the rows that are kept on disk."""

import hashlib
from collections.abc import Collection
from pathlib import Path
from statistics import fmean
from typing import Literal

import msgspec

from hmas.controller.core.errors import HmasError
from hmas.controller.core.types import OutcomeKind
from hmas.demo.calibration import middle_rps
from hmas.planning.fleet import read_fleet
from hmas.planning.report import Report, make_report
from hmas.planning.running import Run, run_case
from hmas_lab.paper.arms import Arm
from hmas_lab.paper.code import fingerprint
from hmas_lab.paper.gates import make_gate
from hmas_lab.paper.over_time import decomposed, in_phases, mismatches, rates_over_time, series_of
from hmas_lab.simulated_rows import KeptRows

AT_ONCE = 1e6
"""A workload this many times faster than its own comes all at once."""
OldRows = Literal["none", "static", "all"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run: all that a process needs.

    Attributes:
        name: The arm's.
        window: Of each instance; 0 for the engine's own.
        phases: Equal parts of it that are told apart.
        at_once: Whether all of it is there from the beginning, to measure capacity.
        series: Whether the row keeps figures over time.
    """

    model: str
    fleet: str
    scenario: str
    workload: str
    warmup_s: float
    name: str
    arm: Arm
    window: int
    seed: int
    phases: int = 1
    at_once: bool = False
    series: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to: `figures` by name, goodput rates by class and tenant, `series` over time; or an `error` in words.

    Attributes:
        code: What the sources were that it was made with.
        steered: Whether agents had a part in it.
    """

    model: str
    scenario: str
    arm: str
    seed: int
    window: int
    code: str
    steered: bool
    figures: dict[str, float] = {}
    classes: dict[str, float] = {}
    tenants: dict[str, float] = {}
    series: dict[str, list[float]] = {}
    error: str = ""


def run_task(data: bytes) -> bytes:
    """One task, encoded, to its row, encoded: a plain function, so that any process can take it."""
    task = msgspec.json.decode(data, type=Task)
    row = Row(
        model=task.model,
        scenario=task.scenario,
        arm=task.name,
        seed=task.seed,
        window=task.window,
        code=fingerprint(),
        steered=bool(task.arm.agents),
    )
    try:
        return msgspec.json.encode(_filled(task, row, run_of(task)))
    except HmasError as error:
        return msgspec.json.encode(msgspec.structs.replace(row, error=str(error)))


def run_of(task: Task) -> Run:
    """Simulates a task.

    Raises:
        ConfigError: It cannot be run.
        TraceError: Its workload cannot be read.
    """
    fleet = read_fleet(task.fleet)
    fleet = fleet.with_window(task.window) if task.window else fleet
    case = task.arm.case(workload=task.workload, fleet=fleet, warmup_s=task.warmup_s, seed=task.seed)
    if task.at_once:
        case = msgspec.structs.replace(case, load=AT_ONCE)
    return run_case(case, gate=make_gate(task.arm.gate, fleet))


def _filled(task: Task, row: Row, run: Run) -> Row:
    if run.violations:
        return msgspec.structs.replace(row, error=f"the independent checker objects: {run.violations[0]}")
    report = make_report(run)
    scored = report.score
    figures = _figures(run, report)
    if not task.at_once:
        end_s = run.load.duration_s
        figures |= mismatches(report.results, task.warmup_s, end_s)
        figures |= rates_over_time(report.results, task.warmup_s, end_s)
        figures |= decomposed(report.results, task.warmup_s, end_s)
        figures |= in_phases(report.results, task.warmup_s, end_s, task.phases)
    return msgspec.structs.replace(
        row,
        figures={name: round(value, 6) for name, value in figures.items()},
        classes={name.rpartition("-")[2]: one.goodput_rate for name, one in scored.per_class.items()},
        tenants={name: one.goodput_rate for name, one in scored.per_tenant.items()},
        series=series_of(report.results, run.load.duration_s) if task.series else {},
    )


def _figures(run: Run, report: Report) -> dict[str, float]:
    scored = report.score
    ends = [record.arrival_s + record.total_ms / 1000.0 for record in run.records if record.outcome == OutcomeKind.COMPLETED]
    scope = [result for result in report.results if result.at_s >= run.case.warmup_s and result.outcome == "completed"]
    ttfts = [result.ttft_ms for result in scope if result.ttft_ms >= 0.0]
    tpots = [result.tpot_ms for result in scope if result.tpot_ms >= 0.0]
    names = (
        *("goodput_rps", "goodput_rate", "throughput_rps", "output_tps", "esg_rate"),
        *("ttft_compliance", "tpot_compliance", "jain_tenants", "jain_classes"),
    )
    return {
        "middle_rps": middle_rps(ends),
        **{name: getattr(scored, name) for name in names},
        "ttft_ms_mean": fmean(ttfts) if ttfts else 0.0,
        "ttft_ms_p95": scored.ttft_ms_started.p95,
        "ttft_ms_p95_all": scored.ttft_ms.p95,
        "tpot_ms_mean": fmean(tpots) if tpots else 0.0,
        "tpot_ms_p50": scored.tpot_ms.p50,
        "tpot_ms_p95": scored.tpot_ms.p95,
        "shed_rate": scored.rejected / max(1, scored.submitted),
        "submitted": float(scored.submitted),
        "rate_rps": run.load.rate_rps,
        "switches": float(len(run.changes)),
        "preemptions": float(sum(part.preemptions for part in report.instances.values())),
    }


def key_of(task: Task) -> str:
    """The same for a task whatever else is run beside it."""
    plain = msgspec.structs.replace(task, arm=msgspec.structs.replace(task.arm, words=""))
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()[:24]


def kept_rows(path: Path | None, *, old: OldRows = "none", again: Collection[str] = ()) -> KeptRows[Task, Row]:
    """Rows that lie there and count: those made by these very sources.

    Args:
        path: The file; None keeps nothing.
        old: Which rows count that other sources made: none, those without agents, or all.
        again: Arms whose rows are made again in any case.

    Raises:
        StudyError: It cannot be read or written.
    """
    now = fingerprint()

    def accept(row: Row) -> bool:
        return row.arm not in again and (row.code == now or old == "all" or (old == "static" and not row.steered))

    return KeptRows(path, Row, key_of, resume=True, accept=accept)
