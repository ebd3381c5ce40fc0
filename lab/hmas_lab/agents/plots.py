"""Latency masking over load as a plot (H-MAS Fig. 12)."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure

from hmas.planning.charts import Line, plot_lines, save
from hmas_lab.agents.masking import MASKING
from hmas_lab.agents.settings import TRAINED

WORDS: Mapping[str, str] = MappingProxyType(
    dict(zip(MASKING, ("sent at once", "sent before the answer came", "sent with the answer"), strict=True))
)


def masking_plot(path: Path, document: Mapping[str, Any]) -> None:
    """Shares of dispatches over load, one panel per way."""
    panels: dict[str, list[Line]] = {}
    for way in dict.fromkeys(place["way"] for place in document["summary"]):
        rows = [
            (place["load"], row)
            for place in document["summary"]
            for row in place["beliefs"]
            if (place["way"], row["belief"]) == (way, TRAINED) and all(name in row for name in MASKING)
        ]
        panels[way] = [Line(words, [(load, row[name]["mean"]) for load, row in rows]) for name, words in WORDS.items()]

    def draw(figure: Figure) -> None:
        found = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (way, drawn) in zip(found, panels.items(), strict=True):
            plot_lines(axes, drawn, x_label="load over capacity", y_label="share of dispatches" if way == next(iter(panels)) else "")
            axes.set_ylim(0.0, 1.02)
            axes.set_title(way, fontsize=9)
        figure.legend(*found[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(WORDS), fontsize=8, frameon=False)

    save(path, draw, width=max(5.0, 4.2 * len(panels)), height=3.4)
