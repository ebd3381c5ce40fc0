"""The files that studies leave behind."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.core.errors import ConfigError
from hmas.lab.studies import report as reporting
from hmas.lab.studies.curves import curves, means
from hmas.lab.studies.grid import Grid, Point
from hmas.lab.studies.running import Run
from hmas.lab.studies.sweep import Row, csv_text, document

DRAWN_MAX = 12
"""Lines in one plot of a sweep: the best so many by what is drawn."""
PLOTTED = (("goodput_rate", "goodput rate"), ("goodput_rps", "goodput, requests/s"), ("ttft_ms_p95", "TTFT p95, ms"))


def write_run(run: Run, out: Path, *, requests: bool, plots: bool) -> dict[str, Any]:
    """Writes report.json, requests.csv and plots of one run, and returns the report.

    Raises:
        ConfigError: A file cannot be written.
    """
    report: dict[str, Any] = reporting.rounded(reporting.document(run))
    write_json(out / "report.json", report)
    if requests:
        write(out / "requests.csv", reporting.request_rows(run))
    if plots:
        from hmas.lab.studies import charts  # noqa: PLC0415 - Matplotlib takes a while to import

        results = reporting.results_of(run)
        charts.latencies(out / "latency.svg", results)
        charts.timeline(out / "timeline.svg", results, reporting.arrivals_end_s(run))
        charts.instances(out / "instances.svg", reporting.instance_figures(run))
    return report


def write_sweep(grid: Grid, points: Sequence[Point], rows: Sequence[Row], out: Path, *, plots: bool) -> dict[str, Any]:
    """Writes sweep.json, sweep.csv and plots of what is done, and returns the document.

    Raises:
        ConfigError: A file cannot be written.
    """
    whole = document(grid, points, rows)
    write_json(out / "sweep.json", whole)
    write(out / "sweep.csv", csv_text(rows))
    if plots and rows:
        from hmas.lab.studies import charts  # noqa: PLC0415 - Matplotlib takes a while to import

        found = means(rows)
        for figure, label in PLOTTED:
            axis, drawn = curves(found, figure)
            if axis:
                best = sorted(drawn, key=lambda line: -sum(y for _, y in line[1]))[:DRAWN_MAX] if len(drawn) > DRAWN_MAX else drawn
                lines = [charts.Line(name, places) for name, places in best]
                charts.lines(out / f"{figure}.svg", lines, x_label="window n_run" if axis == "n_run" else "load", y_label=label)
    return whole


def write_json(path: Path, document: Any) -> None:
    """Writes a JSON document.

    Raises:
        ConfigError: It cannot be written.
    """
    write(path, json.dumps(document, indent=1) + "\n")


def write(path: Path, text: str) -> None:
    """Writes a text file, its folder too.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
