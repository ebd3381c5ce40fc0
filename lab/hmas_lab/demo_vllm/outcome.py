"""The result on a real engine as a document (build/demo-vllm.json), a table and a sentence: medians over blocks, and their spread."""

import os
import platform
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from hmas.cli.output import table
from hmas.demo.decisions import told
from hmas.demo.outcome import DEFAULT, DIGITS, OURS, VERSION, run_document
from hmas.planning.report import rounded
from hmas_lab.demo_vllm.study import NAMES, FieldResult

HEAD = ("run", "window", "goodput/s", "min..max", "rate", "ESG/s", "TTFT p50", "p95", "p99 ms", "ok", "TPOT p50", "p95", "p99 ms", "ok")
TAIL = ("done/s", "refused", "lost")


def paired_ratios(result: FieldResult, base: str) -> list[float]:
    """H-MAS's goodput over another run's on the same arrivals, block by block; blocks where that one has none are left out."""
    pairs = zip(result.goodputs(OURS), result.goodputs(base), strict=True)
    return [ours / theirs for ours, theirs in pairs if theirs > 0]


def strongest(result: FieldResult) -> str:
    """The baseline with the highest median goodput."""
    return max((name for name in NAMES if name != OURS), key=lambda name: median(result.goodputs(name)))


def document(result: FieldResult) -> dict[str, Any]:
    """What is written to demo-vllm.json."""
    best = strongest(result)
    ours = result.blocks[-1].runs[OURS]
    return {
        "version": VERSION,
        "elapsed_s": round(result.elapsed_s, 1),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "engine": {"kind": "vllm", "command": result.server.command(0, "tiny")[1:]},
        "trace": result.trace,
        "settings": msgspec.to_builtins(result.settings),
        "calibration": rounded(msgspec.to_builtins(result.calibration), DIGITS),
        "sweep": rounded(msgspec.to_builtins(result.sweep), DIGITS),
        "runs": [_over_blocks(result, name) for name in NAMES],
        "decisions": msgspec.to_builtins(told(ours)),
        "comparison": {
            "strongest_baseline": best,
            "over_default": _spread(paired_ratios(result, DEFAULT)),
            "over_strongest_baseline": _spread(paired_ratios(result, best)),
            "rejected_runs": sum(block.rejected for block in result.blocks),
        },
        "blocks": [
            {"number": block.number, "arrivals": block.arrivals, "runs": [run_document(run) for run in block.runs.values()]}
            for block in result.blocks
        ],
        "broken": result.broken,
    }


def text_table(result: FieldResult) -> str:
    """Medians over the blocks."""
    return table((*HEAD, *TAIL), [_row(_over_blocks(result, name), result) for name in NAMES])


def headline(result: FieldResult) -> str:
    """The result in a sentence."""
    best = strongest(result)
    over_default, over_best = _spread(paired_ratios(result, DEFAULT)), _spread(paired_ratios(result, best))
    return (
        f"H-MAS on a real vLLM: {_words(over_default)} the engine's default, {_words(over_best)} the strongest baseline ({best}); "
        f"medians of {len(result.blocks)} blocks on the same arrivals, {sum(b.rejected for b in result.blocks)} runs rejected for noise."
    )


def _row(run: Mapping[str, Any], result: FieldResult) -> list[object]:
    values = result.goodputs(run["name"])
    window = "agents" if run["name"] == OURS else run["variant"]["n_run"] or "engine's"
    cells: list[object] = [run["name"], window, f"{run['goodput_rps']:.2f}", f"{min(values):.2f}..{max(values):.2f}"]
    cells += [f"{run['goodput_rate']:.3f}", f"{run['esg_rate']:.0f}"]
    for name, digits in (("ttft", 0), ("tpot", 1)):
        cells += [f"{run[f'{name}_ms'][p]:.{digits}f}" for p in ("p50", "p95", "p99")]
        cells.append(f"{100 * run[f'{name}_compliance']:.0f}%")
    return [*cells, f"{run['throughput_rps']:.2f}", f"{run['rejected']:.0f}", run["lost"]]


def _over_blocks(result: FieldResult, name: str) -> dict[str, Any]:
    """The median of each figure; what was lost is summed."""
    runs = [run_document(block.runs[name]) for block in result.blocks]
    merged = _median(runs)
    assert isinstance(merged, dict)
    return {**merged, "name": name, "variant": runs[0]["variant"], "lost": sum(run["lost"] for run in runs)}


def _median(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, bool) or not isinstance(first, int | float | dict):
        return first
    if isinstance(first, dict):
        return {key: _median([value[key] for value in values if key in value]) for key in first}
    return round(float(median(values)), 4)


def _spread(ratios: Sequence[float]) -> dict[str, float]:
    if not ratios:
        return {"median": 0.0, "min": 0.0, "max": 0.0}
    return {"median": round(median(ratios), 4), "min": round(min(ratios), 4), "max": round(max(ratios), 4)}


def _words(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} times ({spread['min']:.2f} to {spread['max']:.2f})"
