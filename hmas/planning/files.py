"""Writes the files of studies."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hmas.controller.core.errors import ConfigError
from hmas.planning.curves import curves, means
from hmas.planning.grid import Grid, Point
from hmas.planning.report import Report, arrivals_end_s, document, rounded, write_requests
from hmas.planning.sweep import Row, csv_text, sweep_document

DRAWN_MAX = 12
"""Most lines in one plot of a sweep: the best by the plotted figure."""
PLOTTED = (("goodput_rate", "goodput rate"), ("goodput_rps", "goodput, requests/s"), ("ttft_ms_p95", "TTFT p95, ms"))


def write_run(report: Report, out: Path, *, requests: bool, plots: bool) -> dict[str, Any]:
    """Writes report.json, requests.csv and plots of one run, and returns the report's document.

    Raises:
        ConfigError: A file cannot be written.
    """
    whole: dict[str, Any] = rounded(document(report))
    write_json(out / "report.json", whole)
    if requests:
        with _opened(out / "requests.csv") as handle:
            write_requests(report.run, handle)
    if plots:
        from hmas.planning import charts  # noqa: PLC0415 - Matplotlib takes a while to import

        charts.latencies(out / "latency.svg", report.results)
        charts.timeline(out / "timeline.svg", report.results, arrivals_end_s(report.run))
        charts.instances(out / "instances.svg", report.instances)
    return whole


def write_sweep(grid: Grid, points: Sequence[Point], rows: Sequence[Row], out: Path, *, plots: bool) -> dict[str, Any]:
    """Writes sweep.json, sweep.csv and plots of the finished cases, and returns the document.

    Raises:
        ConfigError: A file cannot be written.
    """
    whole = sweep_document(grid, points, rows)
    write_json(out / "sweep.json", whole)
    with _opened(out / "sweep.csv") as handle:
        handle.write(csv_text(rows))
    if plots and rows:
        from hmas.planning import charts  # noqa: PLC0415 - Matplotlib takes a while to import

        found = means(rows)
        for figure, label in PLOTTED:
            axis, drawn = curves(found, figure)
            if axis:
                best = sorted(drawn, key=lambda line: -sum(y for _, y in line[1]))[:DRAWN_MAX] if len(drawn) > DRAWN_MAX else drawn
                lines = [charts.Line(name, places) for name, places in best]
                charts.lines(out / f"{figure}.svg", lines, x_label="window n_run" if axis == "n_run" else "load", y_label=label)
    return whole


def write_json(path: Path, whole: Any) -> None:
    """Writes a JSON document.

    Raises:
        ConfigError: It cannot be written.
    """
    with _opened(path) as handle:
        handle.write(json.dumps(whole, indent=1) + "\n")


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Opens a text file for writing; creates its folder if it does not exist."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as handle:
            yield handle
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
