"""Goodput over the baseline as dots with their spread, one panel per place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmas.planning.charts import save

COLUMNS = 4


class Dot(NamedTuple):
    """One policy: where its mark stands, from where to where its line goes, and single runs beside it."""

    name: str
    at: float
    low: float
    high: float
    points: Sequence[float] = ()


def live_plot(path: Path, document: Mapping[str, Any]) -> None:
    """Medians over blocks, the line from the least to the greatest, every block as a stroke."""
    rows = [row for row in document["summary"]["rows"] if row["runs"]]
    dots = [
        Dot(row["policy"], ratio["median"], ratio["min"], ratio["max"], row["ratios"]) for row in rows for ratio in (row["over_baseline"],)
    ]
    noise = document["summary"]["noise"] or 0.0
    _draw(path, {"real vLLM": dots}, noise=noise)


def simulated_plot(path: Path, document: Mapping[str, Any]) -> None:
    """Means over seeds with their confidence intervals, one panel per slice and load."""
    panels = {
        f"{place['slice']} at {place['load']:g}": [
            Dot(row["policy"], value["mean"], value["mean"] - (value["half"] or 0.0), value["mean"] + (value["half"] or 0.0))
            for row in place["policies"]
            for value in (row["goodput_over_baseline"],)
        ]
        for place in document["summary"]
    }
    _draw(path, panels, noise=0.0)


def _draw(path: Path, panels: Mapping[str, Sequence[Dot]], *, noise: float) -> None:
    columns = min(COLUMNS, max(1, len(panels)))
    lines = -(-max(1, len(panels)) // columns)
    most = max((len(dots) for dots in panels.values()), default=1)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
        flat = [axes for row in grid for axes in row]
        for axes, (title, dots) in zip(flat, panels.items(), strict=False):
            _panel(axes, title, dots, noise)
        for axes in flat[len(panels) :]:
            axes.set_axis_off()
        flat[0].invert_yaxis()

    save(path, draw, width=max(6.0, 2.6 * columns), height=lines * (1.0 + 0.24 * most))


def _panel(axes: Axes, title: str, dots: Sequence[Dot], noise: float) -> None:
    names = [dot.name for dot in dots]
    if noise:
        axes.axvspan(1.0 / (1.0 + noise), 1.0 + noise, color="0.9", linewidth=0)
    axes.axvline(1.0, color="0.4", linewidth=0.8)
    axes.hlines(names, [dot.low for dot in dots], [dot.high for dot in dots], color="tab:blue", linewidth=1.4)
    single = [(point, dot.name) for dot in dots for point in dot.points]
    axes.plot([point for point, _ in single], [name for _, name in single], "|", color="tab:blue", markersize=6.0)
    axes.plot([dot.at for dot in dots], names, "o", color="tab:blue", markersize=4.0)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("goodput over FCFS")
