"""Plots of predicted against measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmas.planning.charts import save


class Cloud(NamedTuple):
    """Points (measured, predicted) of one kind."""

    name: str
    points: Sequence[tuple[float, float]]


def against(path: Path, panels: Mapping[str, Sequence[Cloud]], goals: Mapping[str, float]) -> None:
    """One panel per quantity, measured to the right, predicted upwards, both in logarithms, with the band of the goal.

    Args:
        path: The SVG file.
        panels: Clouds by the panel's title.
        goals: Half width of the band, a relative error, by title.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, clouds) in zip(axes, panels.items(), strict=True):
            _panel(axis, title, clouds, goals.get(title, 0.0))
        axes[0].set_ylabel("predicted")
        if axes[0].get_legend_handles_labels()[0]:
            axes[0].legend(fontsize=7, frameon=False)

    save(path, draw, width=3.6 * max(1, len(panels)), height=3.6)


def sweeps(path: Path, lines: Mapping[str, tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float]]]]) -> None:
    """Time per token against batch size: what was measured as a line, what was predicted as crosses, by name of the sweep."""

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for number, (name, (measured, predicted)) in enumerate(lines.items()):
            colour = f"C{number % 10}"
            axis.plot(*zip(*measured, strict=True), color=colour, linewidth=1.0, label=name)
            if predicted:
                axis.plot(*zip(*predicted, strict=True), "x", color=colour)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("sequences that decode together")
        axis.set_ylabel("median ITL, ms (line: measured, cross: predicted)")
        if lines:
            axis.legend(fontsize=6, frameon=False, ncols=2)

    save(path, draw, width=8.0, height=5.0)


def _panel(axis: Axes, title: str, clouds: Sequence[Cloud], goal: float) -> None:
    values = [value for cloud in clouds for point in cloud.points for value in point if value > 0]
    if values:
        low, high = 0.8 * min(values), 1.25 * max(values)
        axis.plot([low, high], [low, high], color="0.5", linewidth=0.8)
        if goal:
            axis.fill_between(
                [low, high], [low * (1 - goal), high * (1 - goal)], [low * (1 + goal), high * (1 + goal)], color="0.85", linewidth=0
            )
        for cloud in clouds:
            if cloud.points:
                axis.plot(*zip(*cloud.points, strict=True), ".", markersize=5, label=cloud.name)
        axis.set_xscale("log")
        axis.set_yscale("log")
    axis.set_title(title)
    axis.set_xlabel("measured")
