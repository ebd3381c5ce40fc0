"""Aggregates a sweep's rows: means over seeds, and curves for plots."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hmas.planning.grid import AXES
from hmas.planning.sweep import Row


def varied(rows: Sequence[Row]) -> list[str]:
    """Axes with more than one value, except seeds."""
    return [axis for axis in AXES if axis != "seed" and len({str(row.axes[axis]) for row in rows}) > 1]


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one setting, averaged over its seeds."""

    axes: dict[str, Any]
    figures: dict[str, float]
    seeds: int


def means(rows: Sequence[Row]) -> list[Mean]:
    """One entry per setting, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str([row.axes[axis] for axis in AXES if axis != "seed"]), []).append(row)
    return [_mean(group) for group in groups.values()]


def _mean(group: Sequence[Row]) -> Mean:
    names = group[0].figures
    summed = {name: sum(row.figures[name] for row in group) / len(group) for name in names}
    return Mean(axes=group[0].axes, figures=summed, seeds=len(group))


def curves(found: Sequence[Mean], figure: str) -> tuple[str, list[tuple[str, list[tuple[float, float]]]]]:
    """The data of a plot of one figure: its x axis, a number that varies (load before window), and a named line per other setting.

    Empty if no number varies.
    """
    names = [axis for axis in AXES if axis != "seed" and len({str(one.axes[axis]) for one in found}) > 1]
    x_axis = next((axis for axis in ("load", "n_run") if axis in names), "")
    if not x_axis:
        return "", []
    others = [axis for axis in names if axis != x_axis]
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        name = ", ".join(str(one.axes[axis]) for axis in others)
        lines.setdefault(name, []).append((float(one.axes[x_axis]), one.figures[figure]))
    return x_axis, [(name, sorted(points)) for name, points in lines.items()]
