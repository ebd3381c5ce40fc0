"""The demo's result: the document (build/demo.json), the tables, and the classes in which H-MAS is worse than the best baseline."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from hmas.cli.output import table
from hmas.demo.calibration import Calibration, SweepPoint
from hmas.demo.decisions import decision_sentences, told
from hmas.demo.live import LiveRun
from hmas.demo.settings import DemoSettings
from hmas.loadgen.results import Result, is_good
from hmas.planning.report import rounded

VERSION = 1
DIGITS = 4
"""Decimals of the figures in the documents."""
OURS = "hmas"
DEFAULT = "engine-default"
HEAD = (
    *("run", "window", "goodput/s", "rate", "ESG/s"),
    *("TTFT p50", "p95", "p99 ms", "ok"),
    *("TPOT p50", "p95", "p99 ms", "ok"),
    *("done/s", "refused", "lost"),
)
KINDS: Mapping[str, Callable[[Result], str]] = MappingProxyType(
    {
        "body": lambda r: r.kind,
        "max_tokens": lambda r: "sent" if r.capped else "not sent",
        "targets": lambda r: "declared" if r.declared else "not declared",
        "size": lambda r: r.size,
        "tenant": lambda r: r.tenant,
    }
)
"""Functions that sort requests into classes."""


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """All results of a demo; `repeated`: runs that were repeated because the machine had stalled."""

    settings: DemoSettings
    calibration: Calibration
    sweep: list[SweepPoint]
    runs: list[LiveRun]
    elapsed_s: float
    repeated: list[str] = []

    @property
    def broken(self) -> list[str]:
        """All failures and violations; empty in a valid demo."""
        found = [f"{run.variant.name}: {text}" for run in self.runs for text in run.broken]
        ours = self.run(OURS)
        if not ours.actions and not ours.decisions:
            found.append(f"{OURS}: no agent has decided anything")
        return found

    def run(self, name: str) -> LiveRun:
        """A run by its name."""
        return next(run for run in self.runs if run.variant.name == name)

    def strongest(self) -> LiveRun:
        """The baseline with the highest goodput."""
        return max((run for run in self.runs if run.variant.name != OURS), key=lambda run: run.score.goodput_rps)

    def ratio_to(self, other: LiveRun) -> float:
        """H-MAS's goodput over another run's; 0 if that run has none."""
        base = other.score.goodput_rps
        return self.run(OURS).score.goodput_rps / base if base else 0.0


def document(result: DemoResult) -> dict[str, Any]:
    """The content of demo.json."""
    strongest = result.strongest()
    ours = result.run(OURS)
    rows = class_rows(result)
    return {
        "version": VERSION,
        "elapsed_s": round(result.elapsed_s, 1),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "settings": msgspec.to_builtins(result.settings),
        "calibration": rounded(msgspec.to_builtins(result.calibration), DIGITS),
        "sweep": rounded(msgspec.to_builtins(result.sweep), DIGITS),
        "runs": [run_document(run) for run in result.runs],
        "decisions": msgspec.to_builtins(told(ours)),
        "decided": decision_sentences(ours),
        "comparison": {
            "strongest_baseline": strongest.variant.name,
            "over_default": round(result.ratio_to(result.run(DEFAULT)), 4),
            "over_strongest_baseline": round(result.ratio_to(strongest), 4),
        },
        "repeated": result.repeated,
        "timeline": msgspec.to_builtins(ours.samples),
        "classes": msgspec.to_builtins(rows),
        "worse": [row.words for row in rows if row.behind],
        "worse_figures": worse_figures(result),
        "broken": result.broken,
    }


def run_document(run: LiveRun) -> dict[str, Any]:
    """One run, its figures rounded."""
    outcomes = run.summary.outcomes
    figures = rounded(msgspec.to_builtins(run.score), DIGITS)
    # Requests lost in the warm-up count too.
    figures["lost"] = outcomes["lost"]
    return {
        "name": run.variant.name,
        **figures,
        "variant": msgspec.to_builtins(run.variant),
        "all_outcomes": outcomes,
        "actions": len(run.actions),
        "max_gap_s": round(run.summary.max_gap_s, 4),
        "slowest_status_s": round(run.slowest_status_s, 4),
        "noisy": run.noisy,
        "elapsed_s": round(run.summary.elapsed_s, 2),
        "broken": run.broken,
    }


def headline(result: DemoResult) -> str:
    """The result in a sentence."""
    strongest = result.strongest()
    return (
        f"H-MAS: {result.run(OURS).score.goodput_rps:.2f} good requests/s, "
        f"{result.ratio_to(result.run(DEFAULT)):.2f} times the engine's default, "
        f"{result.ratio_to(strongest):.2f} times the strongest baseline ({strongest.variant.name})."
    )


def text_table(runs: Sequence[LiveRun]) -> str:
    """The table of all runs."""
    return table(HEAD, [table_row(run) for run in runs])


def table_row(run: LiveRun) -> list[object]:
    """One run's cells under `HEAD`."""
    s = run.score
    window = "agents" if run.variant.name == OURS else run.variant.n_run or "ceiling"
    return [
        run.variant.name,
        window,
        f"{s.goodput_rps:.2f}",
        f"{s.goodput_rate:.3f}",
        f"{s.esg_rate:.0f}",
        *(f"{v:.0f}" for v in (s.ttft_ms.p50, s.ttft_ms.p95, s.ttft_ms.p99)),
        f"{100 * s.ttft_compliance:.0f}%",
        *(f"{v:.1f}" for v in (s.tpot_ms.p50, s.tpot_ms.p95, s.tpot_ms.p99)),
        f"{100 * s.tpot_compliance:.0f}%",
        f"{s.throughput_rps:.2f}",
        s.rejected,
        run.summary.outcomes["lost"],
    ]


class ClassRow(msgspec.Struct, frozen=True, kw_only=True):
    """One class: its number of requests, and the number of good ones in each run, by the run's name."""

    kind: str
    name: str
    submitted: int
    good: dict[str, int]

    @property
    def best(self) -> tuple[str, int]:
        """The baseline with the most good requests of this class, and their number."""
        baselines = {name: good for name, good in self.good.items() if name != OURS}
        name = max(baselines, key=lambda name: baselines[name])
        return name, baselines[name]

    @property
    def behind(self) -> int:
        """How many good requests H-MAS has less than the best baseline of this class; 0 if it is not worse."""
        return max(0, self.best[1] - self.good[OURS])

    @property
    def words(self) -> str:
        """The class as text."""
        return f"{self.kind} {self.name}"


def class_rows(result: DemoResult) -> list[ClassRow]:
    """Every class of every kind, over the scored requests."""
    warmup_s = result.settings.warmup_s
    scored = {run.variant.name: [r for r in run.results if r.at_s >= warmup_s] for run in result.runs}
    rows = []
    for kind, read in KINDS.items():
        names = sorted({read(r) for results in scored.values() for r in results})
        for name in names:
            members = {run: [r for r in results if read(r) == name] for run, results in scored.items()}
            rows.append(
                ClassRow(
                    kind=kind,
                    name=name,
                    submitted=len(members[OURS]),
                    good={run: sum(map(is_good, results)) for run, results in members.items()},
                )
            )
    return rows


def class_table(rows: Sequence[ClassRow]) -> str:
    """Good requests of every class, run by run, for a terminal."""
    return table(class_head(rows), [class_cells(row) for row in rows])


def class_head(rows: Sequence[ClassRow]) -> list[str]:
    """The heading for `class_cells`."""
    return ["class", "requests", *rows[0].good, "behind the best baseline"]


def class_cells(row: ClassRow) -> list[str]:
    """One class's cells."""
    return [row.words, str(row.submitted), *map(str, row.good.values()), str(row.behind) if row.behind else ""]


def worse_sentences(rows: Sequence[ClassRow]) -> list[str]:
    """A sentence for each class in which H-MAS is worse than the best baseline, worst first; if there is none, one that says so."""
    behind = _behind(rows)
    if not behind:
        return ["H-MAS is worse than the best baseline in no class."]
    return [
        f"H-MAS is worse at {row.words}: {row.good[OURS]} of {row.submitted} requests are good, {row.best[1]} under {row.best[0]}."
        for row in behind
    ]


FIGURES: Sequence[tuple[str, Callable[[LiveRun], float], bool, str]] = (
    ("ESG per second", lambda run: run.score.esg_rate, True, "{:.0f}"),
    ("TTFT p50", lambda run: run.score.ttft_ms.p50, False, "{:.0f} ms"),
    ("TTFT p95", lambda run: run.score.ttft_ms.p95, False, "{:.0f} ms"),
    ("TTFT p99", lambda run: run.score.ttft_ms.p99, False, "{:.0f} ms"),
    ("requests within their TTFT target", lambda run: run.score.ttft_compliance, True, "{:.0%}"),
    ("TPOT p50", lambda run: run.score.tpot_ms.p50, False, "{:.1f} ms"),
    ("TPOT p95", lambda run: run.score.tpot_ms.p95, False, "{:.1f} ms"),
    ("TPOT p99", lambda run: run.score.tpot_ms.p99, False, "{:.1f} ms"),
    ("requests within their TPOT target", lambda run: run.score.tpot_compliance, True, "{:.0%}"),
    ("answers that ended while requests still arrived, per second", lambda run: run.score.throughput_rps, True, "{:.2f}"),
    ("refused requests", lambda run: float(run.score.rejected), False, "{:.0f}"),
    ("Jain's index over the tenants", lambda run: run.score.jain_tenants, True, "{:.3f}"),
)
"""Figures beside goodput by which runs are compared: name, value, whether more is better, and form."""


def worse_figures(result: DemoResult) -> list[str]:
    """The figures by which H-MAS is worse than the strongest baseline, each with both values."""
    ours, other = result.run(OURS), result.strongest()
    found = []
    for name, value, more_is_better, form in FIGURES:
        mine, theirs = form.format(value(ours)), form.format(value(other))
        worse = value(ours) < value(other) if more_is_better else value(ours) > value(other)
        if worse and mine != theirs:
            found.append(f"{name}: {mine} against {theirs}")
    return found


def worse_headline(result: DemoResult, rows: Sequence[ClassRow]) -> str:
    """What H-MAS is worse at, in a sentence or two, to stand beside the headline."""
    other, figures = result.strongest().variant.name, worse_figures(result)
    classes = [f"{row.words} ({row.good[OURS]} of {row.submitted}, {row.best[1]} under {row.best[0]})" for row in _behind(rows)]
    parts = [f"Worse than {other}: {'; '.join(figures)}."] if figures else [f"It is worse than {other} in no figure."]
    parts.append(
        f"Fewer good requests: {'; '.join(classes)}." if classes else "It has fewer good requests than the best baseline in no class."
    )
    return " ".join(parts)


def _behind(rows: Sequence[ClassRow]) -> list[ClassRow]:
    return sorted((row for row in rows if row.behind), key=lambda row: -row.behind)
