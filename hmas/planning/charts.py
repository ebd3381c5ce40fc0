"""Plots of studies and of the demo as SVG: the same figures give the same bytes, and text is stored as text."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmas.loadgen.results import Result, is_good
from hmas.planning.report import InstanceFigures

SETTINGS: Any = {
    # Ids inside the file are derived from this instead of random numbers.
    "svg.hashsalt": "h-mas",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WITHOUT_DATE: Mapping[str, Any] = {"Date": None, "Creator": None}
NO_METADATA: Mapping[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
POINTS = 400
STEPS = 60


class Line(NamedTuple):
    """One line of a plot: its name and its points in order of x."""

    name: str
    points: Sequence[tuple[float, float]]


def save(path: Path, draw: Callable[[Figure], None], *, width: float = 8.0, height: float = 3.6) -> None:
    """Draws on a figure of `width` x `height` inches and writes it as SVG."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        figure.savefig(path, format="svg", metadata=dict(WITHOUT_DATE))


def inline(draw: Callable[[Axes], None]) -> str:
    """Draws on axes and returns the SVG element for an HTML page, with a legend if there are several lines with names."""
    text = io.StringIO()
    with rc_context(SETTINGS):
        figure = Figure(figsize=(6.4, 2.9), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend(fontsize=8, frameon=False)
        figure.savefig(text, format="svg", metadata=dict(NO_METADATA))
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def latencies(path: Path, results: Sequence[Result]) -> None:
    """Plots the distributions of TTFT and TPOT. The TTFT curve ends at the share of requests that got a token."""

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        plot_shares(left, [r.ttft_ms / 1000.0 for r in results if r.ttft_ms >= 0.0], len(results), "TTFT, s")
        tpots = [r.tpot_ms for r in results if r.tpot_ms >= 0.0]
        plot_shares(right, tpots, len(tpots), "TPOT, ms")
        left.set_ylabel("share of requests")

    save(path, draw)


def timeline(path: Path, results: Sequence[Result], end_s: float) -> None:
    """Plots arrivals and good answers per second, and the number of waiting requests, over time."""

    def draw(figure: Figure) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True)
        edges = np.linspace(0.0, max(end_s, 1e-6), STEPS + 1)
        step_s = float(edges[1])
        come = np.histogram([r.at_s for r in results], edges)[0] / step_s
        good = np.histogram([r.at_s + r.total_ms / 1000.0 for r in results if is_good(r)], edges)[0] / step_s
        middles = (edges[:-1] + edges[1:]) / 2.0
        top.plot(middles, come, label="arrived", linewidth=1.0, color="0.45")
        top.plot(middles, good, label="answered within both targets", linewidth=1.4, color="tab:blue")
        top.set_ylabel("requests/s")
        top.legend(loc="upper right", fontsize=8, frameon=False)
        bottom.plot(edges, _waiting(results, edges), linewidth=1.2, color="tab:orange")
        bottom.set_ylabel("waiting requests")
        bottom.set_xlabel("virtual time, s")

    save(path, draw, height=4.4)


def instances(path: Path, found: Mapping[str, InstanceFigures]) -> None:
    """Plots utilisation and requests in flight of each instance."""

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        names = list(found)
        left.barh(names, [100.0 * one.utilisation for one in found.values()], color="tab:blue")
        left.set_xlabel("utilisation, %")
        left.set_xlim(0.0, 100.0)
        left.invert_yaxis()
        right.barh(names, [one.in_flight_mean for one in found.values()], color="tab:orange")
        right.set_xlabel("requests in flight, mean")

    save(path, draw, height=max(2.0, 0.8 + 0.28 * len(found)))


def lines(path: Path, drawn: Sequence[Line], *, x_label: str, y_label: str, mark: float | None = None) -> None:
    """Plots lines over a common axis into a file; `mark` is a level to compare with."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        plot_lines(axes, drawn, x_label=x_label, y_label=y_label, mark=mark)
        if len(drawn) > 1 or drawn[0].name:
            figure.legend(loc="outside right upper", fontsize=8, frameon=False)

    save(path, draw, width=9.0, height=4.0)


def plot_lines(axes: Axes, drawn: Sequence[Line], *, x_label: str, y_label: str, mark: float | None = None) -> None:
    """Plots lines over a common axis; `mark` is a level to compare with."""
    for line in drawn:
        axes.plot([x for x, _ in line.points], [y for _, y in line.points], marker="o", markersize=3.0, linewidth=1.3, label=line.name)
    if mark is not None:
        axes.axhline(mark, color="0.3", linewidth=0.9, linestyle="--")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(bottom=0.0)


def plot_shares(axes: Axes, values: Sequence[float], total: int, label: str, *, name: str = "") -> None:
    """Plots the share of `total` at or below each value; with fewer values than `total` the curve ends below 1."""
    ordered = sorted(values)
    if ordered:
        places = sorted({round(i * (len(ordered) - 1) / POINTS) for i in range(POINTS + 1)})
        axes.plot([ordered[i] for i in places], [(i + 1) / total for i in places], linewidth=1.4, label=name)
    axes.set_xlabel(label)
    axes.set_xlim(left=0.0)
    axes.set_ylim(0.0, 1.02)


def _waiting(results: Sequence[Result], edges: Any) -> Any:
    """Requests at each edge that have arrived, but were not yet dispatched and have not ended."""
    come = np.sort([r.at_s for r in results])
    gone_s = [r.at_s + _waited_ms(r) / 1000.0 for r in results]
    gone = np.sort(gone_s)
    return np.searchsorted(come, edges, side="right") - np.searchsorted(gone, edges, side="right")


def _waited_ms(result: Result) -> float:
    """How long a request waited in the queue; infinite if it never left the queue."""
    if result.queue_ms >= 0.0:
        return result.queue_ms
    if result.total_ms >= 0.0:
        return result.total_ms
    return 0.0 if result.outcome == "rejected" else float("inf")
