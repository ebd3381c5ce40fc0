"""Runs many cases: results are stored as they finish, and an interrupted sweep can be resumed."""

import csv
import io
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from hmas.controller.core.errors import HmasError
from hmas.planning.backends import Backend
from hmas.planning.errors import StudyError
from hmas.planning.grid import AXES, Grid, Point
from hmas.planning.report import make_report, rounded
from hmas.planning.running import run_case

VERSION = 1
FIGURES = (
    *("submitted", "completed", "good", "rejected", "failed", "lost", "goodput_rps", "goodput_rate", "esg", "esg_rate"),
    *("throughput_rps", "output_tps", "ttft_compliance", "tpot_compliance", "jain_tenants", "jain_classes"),
)
LATENCIES = ("ttft_ms", "tpot_ms")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one case: `figures` named as in a report, or an `error` text."""

    key: str
    axes: dict[str, Any]
    figures: dict[str, float]
    error: str = ""


def run_point(task: bytes) -> bytes:
    """Runs an encoded point and returns its encoded row; a plain function, so that it can run in any process."""
    point = msgspec.json.decode(task, type=Point)
    try:
        run = run_case(point.case)
    except HmasError as error:
        return msgspec.json.encode(Row(key=point.case.key, axes=point.axes, figures={}, error=str(error)))
    report = make_report(run)
    scored, parts = report.score, report.instances.values()
    plain: dict[str, float] = {name: getattr(scored, name) for name in FIGURES}
    for name in LATENCIES:
        plain |= {f"{name}_{q}": value for q, value in msgspec.structs.asdict(getattr(scored, name)).items()}
    plain["rate_rps"] = run.load.rate_rps
    plain["utilisation"] = sum(part.utilisation for part in parts) / len(parts)
    plain["preemptions"] = sum(part.preemptions for part in parts)
    plain["cost_per_hour"] = point.case.fleet.price
    plain["violations"] = len(run.violations)
    return msgspec.json.encode(Row(key=point.case.key, axes=point.axes, figures=rounded(plain), error=""))


def run_points(points: Sequence[Point], kept: "Kept", backend: Backend, tell: Callable[[Row, int], None]) -> None:
    """Runs points without a result. An interrupt is passed on to the caller; `kept` then has all finished results.

    Args:
        points: The grid's points.
        kept: The store of results.
        backend: Where the work is done.
        tell: Called with each new row and the number of missing rows.
    """
    missing = [point for point in points if point.case.key not in kept.rows]
    left = len(missing)
    with closing(backend(run_point, [msgspec.json.encode(point) for point in missing])) as answers:
        for _, answer in answers:
            row = msgspec.json.decode(answer, type=Row)
            kept.add(row)
            left -= 1
            tell(row, left)


class Kept:
    """Results on disk, one JSON document per line, appended as they finish. The next run tries failed cases again.

    Attributes:
        rows: Rows by the case's key.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        if not path.exists():
            return
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            # Removes a line that an interrupt or a full disk cut off.
            path.write_bytes(whole)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = msgspec.json.decode(line, type=Row)
            except msgspec.DecodeError as error:
                raise StudyError(f"{path}, line {number}: no result of a sweep ({error}); choose another --out") from error
            if not row.error:
                self.rows[row.key] = row

    def add(self, row: Row) -> None:
        """Stores a result; it is on disk when this returns."""
        if not row.error:
            self.rows[row.key] = row
        with self._path.open("ab") as handle:
            handle.write(msgspec.json.encode(row) + b"\n")

    def of(self, points: Sequence[Point]) -> list[Row]:
        """The existing rows of these points, in the order of the points."""
        return [self.rows[point.case.key] for point in points if point.case.key in self.rows]


def csv_text(rows: Sequence[Row]) -> str:
    """The rows as CSV with a header: the axes, then the figures."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    names = list(rows[0].figures) if rows else []
    writer.writerow([*AXES, *names])
    writer.writerows([*(row.axes[axis] for axis in AXES), *(row.figures[name] for name in names)] for row in rows)
    return text.getvalue()


def sweep_document(grid: Grid, points: Sequence[Point], rows: Sequence[Row]) -> dict[str, Any]:
    """The whole sweep, in the grid's order: the same grid gives the same bytes, regardless of the order of runs."""
    return {
        "version": VERSION,
        "complete": len(rows) == len(points),
        "grid": msgspec.to_builtins(grid),
        "rows": [{"axes": row.axes, "figures": row.figures} for row in rows],
    }
