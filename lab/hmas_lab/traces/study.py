"""The document of the traces: statistics, and what the plots show, so that they can be drawn again without the data."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hmas.controller.core.slo import BASE_SLO
from hmas.workloads import TASKS, Workload, build
from hmas_lab.traces.sources import Histogram
from hmas_lab.traces.statistics import (
    CONTEXTS,
    DISPERSION_S,
    MINUTE_S,
    Floats,
    bursts,
    columns_to_shares,
    counts,
    dispersion,
    drift,
    heat_of,
    into,
    log_edges,
    long_shares,
    percentiles,
    slow,
)

TARGETS = "poisson:rate=40,count=600,seed=1"
"""Requests whose targets Fig. 13 shows: of the project's own mix, with importance drawn evenly (E.5)."""
LEVELS = tuple(np.linspace(0.0, 100.0, 101).tolist())
"""Percentiles of lengths that are kept for the plot."""
WEEK_EDGES = tuple(log_edges(16, 131_072))
DAY_S = 86_400.0


def study(
    traces: Mapping[str, Workload], weeks: Mapping[str, Mapping[float, Histogram]], tasks: Mapping[str, tuple[Floats, Floats]]
) -> dict[str, Any]:
    """Works everything out; the same from the same data.

    Args:
        traces: Requests with times and lengths, by name.
        weeks: Histograms of prompt lengths by model and by the beginning of the window, seconds; may be empty.
        tasks: Prompt and output lengths by task type; may be empty.
    """
    return {
        "version": 1,
        "summary": {
            "traces": {name: _figures(trace) for name, trace in traces.items()},
            "weeks": {name: _slow(windows) for name, windows in weeks.items()},
            "tasks": {name: _lengths(*lengths) for name, lengths in tasks.items()},
            "targets": _targets(build(TARGETS)),
        },
        "series": {name: _series(trace) for name, trace in traces.items()},
        "heat": {name: _heat(trace) for name, trace in traces.items()} | {name: _week_heat(windows) for name, windows in weeks.items()},
    }


def _columns(trace: Workload) -> tuple[Floats, Floats, Floats]:
    at_s, prompt, output = (np.asarray(column, np.float64) for column in (trace.at_s, trace.prompt_tokens, trace.output_tokens))
    return at_s, prompt, output


def _figures(trace: Workload) -> dict[str, float]:
    at_s, prompt, output = _columns(trace)
    found = bursts(at_s, trace.duration_s) | drift(at_s, prompt, output, trace.duration_s)
    return {name: round(value, 4) for name, value in found.items()}


def _series(trace: Workload) -> dict[str, Any]:
    at_s, prompt, output = _columns(trace)
    return {
        "rate_rps": counts(at_s, trace.duration_s, 1.0).tolist(),
        "long": [None if share is None else round(share, 4) for share in long_shares(at_s, prompt, trace.duration_s)],
        "prompt": percentiles(prompt, LEVELS),
        "output": percentiles(output, LEVELS),
        "dispersion": [
            (window_s, round(dispersion(at_s, trace.duration_s, window_s), 3))
            for window_s in DISPERSION_S
            if trace.duration_s >= 10.0 * window_s
        ],
    }


def _heat(trace: Workload) -> dict[str, Any]:
    at_s, prompt, _ = _columns(trace)
    edges = log_edges(float(np.percentile(prompt, 1)), float(prompt.max()))
    inside = np.clip(prompt, edges[0], None)
    return {"unit": "min", "step": 1.0, "edges": edges, "shares": heat_of(at_s, inside, edges, trace.duration_s, MINUTE_S)}


def _week_heat(windows: Mapping[float, Histogram]) -> dict[str, Any]:
    times = list(windows)
    grid = np.array([into(WEEK_EDGES, *windows[at_s])[:-1] for at_s in times]).T
    return {"unit": "days", "step": (times[1] - times[0]) / DAY_S, "edges": list(WEEK_EDGES), "shares": columns_to_shares(grid)}


def _slow(windows: Mapping[float, Histogram]) -> dict[str, float]:
    found = slow({at_s: into(CONTEXTS, *histogram) for at_s, histogram in windows.items()})
    return {"windows": float(len(windows)), **{name: round(value, 4) for name, value in found.items()}}


def _lengths(prompt: Floats, output: Floats) -> dict[str, Any]:
    return {"prompts": len(prompt), "prompt": percentiles(prompt), "output": percentiles(output)}


def _targets(drawn: Workload) -> dict[str, Any]:
    """By task type: its row of Table 6, and the targets of the drawn requests by Eq. 14, sorted."""
    ttft_ms, tpot_ms = np.asarray(drawn.slo_ttft_ms, np.float64), np.asarray(drawn.slo_tpot_ms, np.float64)
    found: dict[str, dict[str, Any]] = {}
    for number, task in enumerate(TASKS):
        mine = np.flatnonzero(np.asarray(drawn.task) == number)
        if len(mine):
            points = sorted(zip(ttft_ms[mine].tolist(), tpot_ms[mine].tolist(), strict=True))
            found[task.value] = {"base": [BASE_SLO[task].ttft_ms, BASE_SLO[task].tpot_ms], "points": points}
    return dict(sorted(found.items(), key=lambda item: item[1]["base"]))
