"""Plots of the window's responses, one file for each shape without the guard, with it and on a real engine, and of coverage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmas.planning.charts import Line, lines
from hmas_lab.statera.responses import GUARDS


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws what is there; returns the files."""
    drawn = []
    if "responses" in document:
        caps = {(row["guard"], row["shape"]): float(row["best_cap"]) for row in document["responses"]["rows"]}
        for (guard, shape), cap in caps.items():
            path = folder / f"statera-{shape}{'-guarded' if GUARDS[guard] else ''}.svg"
            traces = document["responses"]["traces"][guard][shape]
            found = [Line(law, [(at, n_run) for at, n_run in points]) for law, points in traces.items() if law != "fixed"]
            lines(path, found, x_label="time, s", y_label="window, requests", mark=cap)
            drawn.append(path)
    for shape, traces in document.get("live", {}).get("traces", {}).items():
        path = folder / f"statera-{shape}-live.svg"
        found = [Line(arm, [(at, float(n_run)) for at, n_run in points]) for arm, points in traces.items()]
        lines(path, found, x_label="time, s", y_label="window, requests")
        drawn.append(path)
    if "coverage" in document:
        path = folder / "statera-coverage.svg"
        rows = [row for row in document["coverage"]["rows"] if row["scenario"] != "stationary"]
        found = [
            Line(
                f"{scenario}, {method}",
                [(row["epsilon"], row["rate"]) for row in rows if (row["scenario"], row["method"]) == (scenario, method)],
            )
            for scenario in dict.fromkeys(row["scenario"] for row in rows)
            for method in ("window", "adaptive")
        ]
        found.append(Line("wanted", [(epsilon, epsilon) for epsilon in sorted({row["epsilon"] for row in rows})]))
        lines(path, found, x_label="epsilon", y_label="share longer than the bound")
        drawn.append(path)
    return drawn
