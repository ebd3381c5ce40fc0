"""The demo's result as a document (build/demo.json) and as a table."""

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from hmas.cli.output import table
from hmas.demo.calibration import Calibration, SweepPoint
from hmas.demo.live import LiveRun
from hmas.demo.settings import DemoSettings
from hmas.demo.watching import Decision

VERSION = 1
OURS = "hmas"
RATIOS = ("over_default", "over_strongest_baseline")
HEAD = (
    *("run", "window", "goodput/s", "rate", "ESG/s"),
    *("TTFT p50", "p95", "p99 ms", "ok"),
    *("TPOT p50", "p95", "p99 ms", "ok"),
    *("done/s", "refused", "lost"),
)
DEFAULT = "engine-default"


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """All results of a demo.

    Attributes:
        neighbours: Live runs of the windows next to the baselines' best, if they were checked.
        repeated: Runs that were repeated because the machine had stalled.
        troubles: Failures outside the runs, as text.
    """

    settings: DemoSettings
    calibration: Calibration
    sweep: list[SweepPoint]
    runs: list[LiveRun]
    elapsed_s: float
    neighbours: list[LiveRun] = []
    repeated: list[str] = []
    troubles: list[str] = []

    @property
    def broken(self) -> list[str]:
        """All failures and violations; empty in a valid demo."""
        runs = [*self.runs, *self.neighbours]
        found = [*self.troubles, *(f"{run.variant.name}: {text}" for run in runs for text in run.broken)]
        ours = next((run for run in self.runs if run.variant.name == OURS), None)
        if ours is not None and not ours.actions and not ours.decisions:
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


def document(result: DemoResult, rounds: Sequence[DemoResult] = ()) -> dict[str, Any]:
    """The content of demo.json: one round in full, and the ratios of all rounds."""
    strongest = result.strongest()
    ours = result.run(OURS)
    return {
        "version": VERSION,
        "elapsed_s": round(result.elapsed_s, 1),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "settings": msgspec.to_builtins(result.settings),
        "calibration": rounded(msgspec.to_builtins(result.calibration)),
        "sweep": rounded(msgspec.to_builtins(result.sweep)),
        "runs": [run_document(run) for run in result.runs],
        "decisions": msgspec.to_builtins(told(ours)),
        "comparison": {
            "strongest_baseline": strongest.variant.name,
            "over_default": round(result.ratio_to(result.run(DEFAULT)), 4),
            "over_strongest_baseline": round(result.ratio_to(strongest), 4),
        },
        "rounds": [_round_figures(r) for r in rounds or [result]],
        "neighbours": [
            {"name": run.variant.name, "n_run": run.variant.n_run, "goodput_rps": round(run.score.goodput_rps, 4)}
            for run in result.neighbours
        ],
        "timeline": msgspec.to_builtins(ours.samples),
        "broken": result.broken,
    }


def run_document(run: LiveRun) -> dict[str, Any]:
    """One run, its figures rounded."""
    outcomes = run.summary.outcomes
    figures = rounded(msgspec.to_builtins(run.score))
    # Requests lost in the warm-up count too.
    figures["lost"] = outcomes["lost"]
    return {
        "name": run.variant.name,
        **figures,
        "variant": msgspec.to_builtins(run.variant),
        "all_outcomes": outcomes,
        "actions": run.actions,
        "controls": msgspec.to_builtins(run.controls),
        "max_gap_s": round(run.summary.max_gap_s, 4),
        "slowest_status_s": round(run.slowest_status_s, 4),
        "noisy": run.noisy,
        "elapsed_s": round(run.summary.elapsed_s, 2),
        "broken": run.broken,
    }


def told(run: LiveRun) -> list[Decision]:
    """Meta's decisions and every change that the gateway made for an agent, in order of time."""
    return sorted([*run.verdicts, *run.decisions], key=lambda d: d.at_s)


def _round_figures(result: DemoResult) -> dict[str, Any]:
    return {
        "seed": result.settings.seed,
        "goodput_rps": {run.variant.name: round(run.score.goodput_rps, 4) for run in result.runs},
        "over_default": round(result.ratio_to(result.run(DEFAULT)), 4),
        "over_strongest_baseline": round(result.ratio_to(result.strongest()), 4),
        "noisy": [run.variant.name for run in result.runs if run.noisy],
        "repeated": result.repeated,
        "broken": result.broken,
    }


def rounds_table(results: Sequence[DemoResult]) -> str:
    """A table of goodput and ratios of every round, with medians and ranges."""
    figures = [_round_figures(result) for result in results]
    names = [run.variant.name for run in results[0].runs]
    rows: list[list[object]] = [
        [f["seed"], *(f"{f['goodput_rps'][name]:.2f}" for name in names), f"{f['over_default']:.3f}", f"{f['over_strongest_baseline']:.3f}"]
        for f in figures
    ]
    columns = [*([f["goodput_rps"][name] for f in figures] for name in names), *([f[key] for f in figures] for key in RATIOS)]
    for word, pick in (("median", median), ("lowest", min), ("highest", max)):
        rows.append([word, *(f"{pick(column):.3f}" for column in columns)])
    return table(["seed", *names, "over default", "over strongest"], rows)


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


def chosen_decisions(run: LiveRun, limit: int) -> list[Decision]:
    """A selection of decisions to print: new policy decisions, at most half of them, then control changes, evenly sampled."""
    policy = _news(d for d in told(run) if d.kind in {"policy", "bypass"})[: limit // 2]
    knobs = [d for d in run.decisions if d.kind.startswith("knobs.")]
    step = max(1, -(-len(knobs) // max(1, limit - len(policy))))
    # Changes come in pairs of engines and knobs, so an odd step selects all of them.
    return sorted([*policy, *knobs[:: step | 1]], key=lambda d: d.at_s)


def _news(decisions: Iterable[Decision]) -> list[Decision]:
    """Leaves out decisions that change nothing for reasons that differ from the previous ones only in figures."""
    kept: list[Decision] = []
    last = ""
    for decision in decisions:
        grounds = re.sub(r"[0-9.]+", "#", decision.reason)
        if decision.before != decision.after or grounds != last:
            kept.append(decision)
        last = grounds
    return kept


def decision_line(decision: Decision) -> str:
    """One decision as a line of text."""
    change = f"{decision.before or '-'} -> {decision.after or '-'}"
    return f"{decision.at_s:6.1f} s  {decision.source}: {decision.kind} {decision.subject}: {change}  ({decision.reason})"


def rounded(value: Any) -> Any:
    """A document with floats rounded to four decimals."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value
