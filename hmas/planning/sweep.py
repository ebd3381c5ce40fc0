"""A sweep: a grid over settings, the runs of its cases, their results on disk as they finish, means over seeds and curves for plots."""

import csv
import io
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.controller.core.errors import ConfigError, HmasError
from hmas.controller.routing.registry import DEFAULT_ROUTER
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.planning import StudyError
from hmas.planning.backends import Backend
from hmas.planning.case import Case, SloTarget, read_admission, read_agents, read_policy, read_slo
from hmas.planning.fleet import read_fleet
from hmas.planning.loads import states_seed
from hmas.planning.report import make_report, opened, rounded, write_json
from hmas.planning.running import run_case

VERSION = 1
FIRST = b'{"key":'
"""How every result in a file begins (`Row`)."""
MAX_CASES = 100_000
AXES = ("fleet", "load", "policy", "n_run", "router", "admission", "agents", "seed")
FIGURES = (
    *("submitted", "completed", "good", "rejected", "failed", "lost", "goodput_rps", "goodput_rate", "esg", "esg_rate"),
    *("throughput_rps", "output_tps", "ttft_compliance", "tpot_compliance", "jain_tenants", "jain_classes"),
)
LATENCIES = ("ttft_ms", "tpot_ms")
DRAWN_MAX = 12
"""Most lines in one plot of a sweep: the best by the plotted figure."""
PLOTTED = (("goodput_rate", "goodput rate"), ("goodput_rps", "goodput, requests/s"), ("ttft_ms_p95", "TTFT p95, ms"))

LESS_IS_BETTER = {"ttft_ms_p95"}


class Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every combination of the lists, each value as on the command line of `hmas simulate`.

    Attributes:
        n_run: Windows of all instances; 0 for the fleet's own.
    """

    workload: str
    fleet: tuple[str, ...]
    load: tuple[Annotated[float, Meta(gt=0, le=1e6)], ...] = (1.0,)
    policy: tuple[str, ...] = (DEFAULT_POLICY,)
    n_run: tuple[Annotated[int, Meta(ge=0)], ...] = (0,)
    router: tuple[str, ...] = (DEFAULT_ROUTER,)
    admission: tuple[str, ...] = ("gateway",)
    agents: tuple[str, ...] = ("none",)
    seed: tuple[Annotated[int, Meta(ge=0)], ...] = (1,)
    slo: str = ""
    model: str = ""
    duration_s: Annotated[float, Meta(ge=0)] = 0.0
    limit: Annotated[int, Meta(ge=0)] = 0
    warmup_s: Annotated[float, Meta(ge=0)] = 0.0


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One case of a grid and its value on every axis."""

    case: Case
    axes: dict[str, Any]


def points_of(grid: Grid) -> list[Point]:
    """All cases of a grid, the last axis fastest, each checked.

    Raises:
        ConfigError: A value cannot be used, an axis is empty, or there are too many cases.
    """
    values = [getattr(grid, axis) for axis in AXES]
    count = 1
    for axis, chosen in zip(AXES, values, strict=True):
        if not chosen or len(set(chosen)) != len(chosen):
            raise ConfigError(f"grid: {axis} is {chosen}; allowed: one value or more, each once")
        count *= len(chosen)
    if count > MAX_CASES:
        raise ConfigError(f"grid: {count} cases; allowed: {MAX_CASES} at most")
    if len(grid.seed) > 1 and states_seed(grid.workload):
        raise ConfigError(f"grid: seed is {grid.seed} and the workload names its own; allowed: one of the two")
    slo = read_slo(grid.slo)[0] if grid.slo else SloTarget()
    points = []
    for chosen in itertools.product(*values):
        axes = dict(zip(AXES, chosen, strict=True))
        policy, parameters = read_policy(axes["policy"])
        fleet = read_fleet(axes["fleet"])
        fields = {
            "workload": grid.workload,
            "fleet": fleet.with_window(axes["n_run"]) if axes["n_run"] else fleet,
            "load": axes["load"],
            "duration_s": grid.duration_s,
            "limit": grid.limit,
            "warmup_s": grid.warmup_s,
            "model": grid.model,
            "policy": policy,
            "parameters": parameters,
            "router": axes["router"],
            "admission": read_admission(axes["admission"]),
            "agents": read_agents(axes["agents"]),
            "slo": slo,
            "seed": axes["seed"],
        }
        case = Case(**fields)
        case.check()
        points.append(Point(case=case, axes=axes))
    return points


def make_grid(settings: dict[str, Any]) -> Grid:
    """Makes a grid from plain settings.

    Raises:
        ConfigError: A setting is missing, unknown or of the wrong type; the error names it.
    """
    try:
        return msgspec.convert(settings, Grid, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"grid: {error}") from error


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

    `tell` is called with each new row and the number of missing rows.
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
    """Results on disk, one JSON document per line, appended as they finish. The next run tries failed cases again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        if not path.exists():
            return
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if data and not whole and not data.startswith(FIRST):
            raise StudyError(f"{path}: no results of a sweep; choose another --out")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = msgspec.json.decode(line, type=Row)
            except msgspec.DecodeError as error:
                raise StudyError(f"{path}, line {number}: no result of a sweep ({error}); choose another --out") from error
            if not row.error:
                self.rows[row.key] = row
        if len(whole) < len(data):
            # Removes a line that an interrupt or a full disk cut off.
            os.truncate(path, len(whole))

    def add(self, row: Row) -> None:
        """Stores a result; it is on disk when this returns."""
        if not row.error:
            self.rows[row.key] = row
        with self._path.open("ab") as handle:
            handle.write(msgspec.json.encode(row) + b"\n")

    def of(self, points: Sequence[Point]) -> list[Row]:
        """The existing rows of these points, in their order. The axes are those of the points: one case can be written in several ways."""
        found = [(self.rows.get(point.case.key), point) for point in points]
        return [msgspec.structs.replace(row, axes=point.axes) for row, point in found if row is not None]


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


def varied(rows: Sequence[Row]) -> list[str]:
    """Axes with more than one value, except seeds."""
    return [axis for axis in AXES if axis != "seed" and len({str(row.axes[axis]) for row in rows}) > 1]


def means(rows: Sequence[Row]) -> list[Row]:
    """One row per setting, in order of appearance: that of its first seed, with the figures averaged over its seeds."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str([row.axes[axis] for axis in AXES if axis != "seed"]), []).append(row)
    return [_mean(group) for group in groups.values()]


def _mean(group: Sequence[Row]) -> Row:
    names = group[0].figures
    summed = {name: sum(row.figures[name] for row in group) / len(group) for name in names}
    return msgspec.structs.replace(group[0], figures=summed)


def curves(found: Sequence[Row], figure: str) -> tuple[str, list[tuple[str, list[tuple[float, float]]]]]:
    """The data of a plot of one figure: its x axis, a number that varies (load before window), and a named line per other setting.

    Empty if no number varies.
    """
    names = varied(found)
    x_axis = next((axis for axis in ("load", "n_run") if axis in names), "")
    if not x_axis:
        return "", []
    others = [axis for axis in names if axis != x_axis]
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        name = ", ".join(str(one.axes[axis]) for axis in others)
        lines.setdefault(name, []).append((float(one.axes[x_axis]), one.figures[figure]))
    return x_axis, [(name, sorted(points)) for name, points in lines.items()]


def write_sweep(grid: Grid, points: Sequence[Point], rows: Sequence[Row], out: Path, *, plots: bool) -> dict[str, Any]:
    """Writes sweep.json, sweep.csv and plots of the finished cases, and returns the document.

    Raises:
        ConfigError: A file cannot be written.
    """
    whole = sweep_document(grid, points, rows)
    write_json(out / "sweep.json", whole)
    with opened(out / "sweep.csv") as handle:
        handle.write(csv_text(rows))
    if plots and rows:
        from hmas.planning import charts  # noqa: PLC0415 - Matplotlib takes a while to import

        found = means(rows)
        for figure, label in PLOTTED:
            axis, drawn = curves(found, figure)
            if axis:
                if len(drawn) > DRAWN_MAX:
                    drawn = sorted(drawn, key=lambda line: sum(y for _, y in line[1]), reverse=figure not in LESS_IS_BETTER)[:DRAWN_MAX]
                lines = [charts.Line(name, places) for name, places in drawn]
                charts.lines(out / f"{figure}.svg", lines, x_label="window n_run" if axis == "n_run" else "load", y_label=label)
    return whole
