"""The plots of the traces (H-MAS Fig. 2, 11 and 13), from the document."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmas.planning.charts import save

Document = Mapping[str, Any]
PLOTS: Mapping[str, str] = MappingProxyType(
    {
        "traces-time": "Requests per second, and share of long prompts by minute",
        "traces-lengths": "Lengths of prompts and answers, dispersion of arrivals, lengths by task type",
        "traces-heat": "Context lengths over time",
        "traces-targets": "Targets of requests by task type",
    }
)
"""Names of the files without `.svg`, and what each shows."""
HEAT_COLUMNS = 3
MARKS = ("o", "s", "^", "D", "v", "P", "X")


def draw_all(folder: Path, document: Document) -> list[str]:
    """Writes every plot of `PLOTS`; returns their names."""
    _over_time(folder / "traces-time.svg", document["series"])
    _lengths(folder / "traces-lengths.svg", document)
    _heat(folder / "traces-heat.svg", document["heat"])
    _targets(folder / "traces-targets.svg", document["summary"]["targets"])
    return list(PLOTS)


def _over_time(path: Path, series: Document) -> None:
    def draw(figure: Figure) -> None:
        grid = figure.subplots(2, len(series), sharex="col", squeeze=False)
        for column, (name, one) in enumerate(series.items()):
            top, bottom = grid[0][column], grid[1][column]
            rates = np.array(one["rate_rps"])
            top.plot(np.arange(len(rates)) / 60.0, rates, linewidth=0.5, color="C0")
            top.axhline(rates.mean(), color="0.2", linewidth=0.9, linestyle="--")
            top.set_title(name, fontsize=9)
            # The line breaks where a minute says nothing.
            shares = [np.nan if share is None else share for share in one["long"]]
            bottom.plot(np.arange(len(shares)) + 0.5, shares, marker="o", markersize=2.5, linewidth=1.0, color="C3")
            bottom.set_ylim(0.0, 1.0)
            bottom.set_xlabel("minutes")
        grid[0][0].set_ylabel("requests in a second")
        grid[1][0].set_ylabel("long prompts, share of a minute")

    save(path, draw, width=4.0 * max(2, len(series)), height=4.6)


def _lengths(path: Path, document: Document) -> None:
    series, tasks = document["series"], document["summary"]["tasks"]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 4 if tasks else 3, width_ratios=[1.0, 1.0, 1.0, 1.5] if tasks else None)
        for axes, (key, words) in zip(panels, (("prompt", "prompt tokens"), ("output", "answer tokens")), strict=False):
            for name, one in series.items():
                axes.plot(one[key], np.linspace(0.0, 1.0, len(one[key])), linewidth=1.3, label=name)
            axes.set_xscale("log")
            axes.set_xlabel(words)
        panels[0].set_ylabel("share of requests at or below")
        for one in series.values():
            panels[2].plot([at for at, _ in one["dispersion"]], [value for _, value in one["dispersion"]], marker="o", markersize=3.0)
        panels[2].axhline(1.0, color="0.3", linewidth=0.9, linestyle="--")
        panels[2].set_xscale("log")
        panels[2].set_yscale("log")
        panels[2].set_xlabel("window, s")
        panels[2].set_title("variance over mean of arrivals", fontsize=9)
        if tasks:
            _by_task(panels[3], tasks)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)

    save(path, draw, width=13.0 if tasks else 9.5, height=4.0)


def _by_task(axes: Axes, tasks: Mapping[str, Any]) -> None:
    """Medians of both lengths, and the line from the 5th to the 95th percentile."""
    for shift, key, words, colour in ((-0.16, "prompt", "prompt", "C0"), (0.16, "output", "answer", "C1")):
        places = [number + shift for number in range(len(tasks))]
        found = [one[key] for one in tasks.values()]
        axes.hlines(places, [max(1.0, low) for low, _, _ in found], [high for _, _, high in found], color=colour, linewidth=1.3)
        axes.plot([max(1.0, middle) for _, middle, _ in found], places, "o", markersize=3.5, color=colour, label=words)
    axes.set_xscale("log")
    axes.set_yticks(range(len(tasks)), list(tasks), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("tokens: p5, median, p95")
    axes.legend(fontsize=7, frameon=False)


def _heat(path: Path, heat: Document) -> None:
    columns = min(HEAT_COLUMNS, len(heat))
    lines = -(-len(heat) // columns)

    def draw(figure: Figure) -> None:
        flat = [axes for row in figure.subplots(lines, columns, squeeze=False) for axes in row]
        for axes, (name, one) in zip(flat, heat.items(), strict=False):
            shares, edges = np.array(one["shares"]), np.log2(one["edges"])
            extent = (0.0, one["step"] * shares.shape[1], edges[0], edges[-1])
            # Not interpolated: the file then holds one pixel a cell.
            axes.imshow(shares, origin="lower", aspect="auto", extent=extent, interpolation="none", cmap="viridis")
            ticks = np.arange(np.ceil(edges[0]), edges[-1] + 0.5, 2.0)
            axes.set_yticks(ticks, [f"{2**tick:,.0f}" for tick in ticks], fontsize=7)
            axes.set_title(name, fontsize=9)
            axes.set_xlabel(one["unit"])
            axes.grid(visible=False)
        for axes in flat[len(heat) :]:
            axes.set_axis_off()
        for row in range(lines):
            flat[row * columns].set_ylabel("prompt tokens")

    save(path, draw, width=4.2 * columns, height=2.8 * lines)


def _targets(path: Path, targets: Document) -> None:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (mark, (task, one)) in enumerate(zip(cycle(MARKS), targets.items(), strict=False)):
            points: Sequence[Sequence[float]] = one["points"]
            ttft_s = [ttft_ms / 1000.0 for ttft_ms, _ in points]
            axes.plot(ttft_s, [tpot_ms for _, tpot_ms in points], mark, markersize=3.0, color=f"C{number % 10}", alpha=0.6, label=task)
        axes.set_xlabel("TTFT target, s")
        axes.set_ylabel("TPOT target, ms")
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)

    save(path, draw, width=9.0, height=4.2)
