"""The comparison in simulation: every policy on each slice of the workload, with the same window and the same treatment of late requests.

For each slice the fleet's capacity is measured on a backlog of the slice's own requests, targets are put above the TPOT at the knee, and
the window is tuned for first come first served with shedding on a workload that is not scored. What is believed of a request is what a
gateway without agents believes: the history of its tenant and length bucket.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hmas.controller.core.errors import HmasError
from hmas.controller.core.types import OutcomeKind, Slo
from hmas.demo.calibration import Calibration, best_window, middle_rps, operating_point
from hmas.planning import StudyError
from hmas.planning.backends import Backend
from hmas.planning.case import PRESETS, Case
from hmas.planning.fleet import Fleet, read_fleet
from hmas.planning.report import make_report
from hmas.planning.running import Run, run_case
from hmas.workloads import build
from hmas_lab.compare import plain
from hmas_lab.policies.settings import BASELINE, LATE, SimulatedSettings
from hmas_lab.policies.sim_figures import summary
from hmas_lab.simulated_rows import caps_of, curve_of, rows_of

WORKLOADS = {"steady": "poisson", "burst": "burst", "drift": "drift", "shift": "shift"}
"""The catalogue's name of each slice."""
AT_ONCE = 1e6
"""A workload this many times faster than its own comes all at once."""
TUNING_SEED = 0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run and what it is for."""

    slice: str
    load: float
    policy: str
    seed: int
    case: Case


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to: `figures` by name, `classes` and `tenants` as goodput rates; or an `error` in words."""

    slice: str
    load: float
    policy: str
    seed: int
    window: int
    figures: dict[str, float] = {}
    classes: dict[str, float] = {}
    tenants: dict[str, float] = {}
    error: str = ""


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """A slice at a load: its operating point, the windows that were tried (goodput rate by window), and the best."""

    slice: str
    load: float
    calibration: Calibration
    tried: dict[int, float]
    window: int


def run_task(data: bytes) -> bytes:
    """One task, encoded, to its row, encoded: a plain function, so that any process can take it."""
    task = msgspec.json.decode(data, type=Task)
    window = task.case.fleet.kinds[0].n_run
    row = Row(slice=task.slice, load=task.load, policy=task.policy, seed=task.seed, window=window)
    try:
        return msgspec.json.encode(_filled(row, run_case(task.case)))
    except HmasError as error:
        return msgspec.json.encode(msgspec.structs.replace(row, error=str(error)))


def _filled(row: Row, run: Run) -> Row:
    if run.violations:
        return msgspec.structs.replace(row, error=f"the independent checker objects: {run.violations[0]}")
    scored = make_report(run).score
    ends = [record.arrival_s + record.total_ms / 1000.0 for record in run.records if record.outcome == OutcomeKind.COMPLETED]
    figures = {
        "middle_rps": middle_rps(ends),
        "tpot_ms_p50": scored.tpot_ms.p50,
        "goodput_rps": scored.goodput_rps,
        "goodput_rate": scored.goodput_rate,
        "service_jain": scored.fairness.jain,
        "service_max_min": scored.fairness.max_min,
        "jain_tenants": scored.jain_tenants,
        "jain_classes": scored.jain_classes,
        "ttft_ms_p50": scored.ttft_ms.p50,
        "ttft_ms_p99": scored.ttft_ms.p99,
        "ttft_ms_started_p99": scored.ttft_ms_started.p99,
        "tpot_ms_p95": scored.tpot_ms.p95,
        "shed_rate": scored.rejected / max(1, scored.submitted),
        "submitted": float(scored.submitted),
    }
    classes = {name.rpartition("-")[2]: one.goodput_rate for name, one in scored.per_class.items()}
    return msgspec.structs.replace(
        row, figures=figures, classes=classes, tenants={name: one.goodput_rate for name, one in scored.per_tenant.items()}
    )


class SimulatedStudy:
    """The whole comparison; `say` is told where it stands."""

    def __init__(self, settings: SimulatedSettings, backend: Backend, say: Callable[[str], None]) -> None:
        """Checks what can be checked without a simulation.

        Raises:
            ConfigError: The fleet cannot be read, or no window is left to try.
        """
        self._settings = settings
        self._backend = backend
        self._say = say
        self._fleet: Fleet = read_fleet(settings.fleet)
        self._caps = caps_of(self._fleet, settings.caps)

    def run(self) -> dict[str, Any]:
        """Runs it all. The same settings give the same document, however many processes work on it.

        Raises:
            StudyError: A run failed while the operating point was looked for.
        """
        settings = self._settings
        grounds = self._tune(self._calibrate())
        tasks = [
            self._task(ground, policy, seed, ground.window)
            for ground in grounds
            for seed in range(1, settings.seeds + 1)
            for policy in settings.policies
        ]
        self._say(f"{len(tasks)} runs: {len(settings.policies)} policies, {len(grounds)} slices and loads, {settings.seeds} seeds")
        rows = self._rows(tasks, tell=True)
        return {
            "version": 1,
            "settings": msgspec.to_builtins(settings),
            "fleet": self._fleet.name,
            "late": LATE,
            "grounds": plain(grounds),
            "summary": summary([msgspec.to_builtins(row) for row in rows], settings.policies),
            "rows": plain(rows),
        }

    def _calibrate(self) -> dict[str, Calibration]:
        """Each slice's capacity, from its own requests all there at once, at every window."""
        settings = self._settings
        rate = settings.backlog * self._fleet.size / settings.duration_s
        texts = {name: f"{WORKLOADS[name]}:rate={rate!r},duration={settings.duration_s!r}" for name in settings.slices}
        tasks = [
            Task(
                slice=name, load=AT_ONCE, policy=BASELINE, seed=TUNING_SEED, case=self._case(text, BASELINE, TUNING_SEED, cap, at_once=True)
            )
            for name, text in texts.items()
            for cap in self._caps
        ]
        rows = self._rows(tasks)
        self._check(rows)
        return {name: self._point(name, text, [row for row in rows if row.slice == name]) for name, text in texts.items()}

    def _point(self, name: str, text: str, rows: Sequence[Row]) -> Calibration:
        curve = curve_of(rows, name)
        workload = build(f"{text},seed={TUNING_SEED}")
        targets = zip(workload.slo_ttft_ms.tolist(), workload.slo_tpot_ms.tolist(), strict=True)
        slos = [Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms) for ttft_ms, tpot_ms in targets]
        found = operating_point(curve, load=1.0, headroom=self._settings.tpot_headroom, slos=slos)
        self._say(
            f"{name}: capacity {found.capacity_rps:.2f} requests/s, knee at a window of {found.knee.n_run}, SLOs x {found.slo_scale:g}"
        )
        return found

    def _tune(self, points: dict[str, Calibration]) -> list[Ground]:
        """The best window of each slice and load for the baseline; of equals the smaller one."""
        bare = [
            Ground(
                slice=name,
                load=load,
                calibration=msgspec.structs.replace(found, mean_rps=load * found.capacity_rps),
                tried={},
                window=0,
            )
            for name, found in points.items()
            for load in self._settings.loads
        ]
        rows = self._rows([self._task(ground, BASELINE, TUNING_SEED, cap) for ground, cap in itertools.product(bare, self._caps)])
        self._check(rows)
        grounds = []
        for ground in bare:
            mine = [row for row in rows if (row.slice, row.load) == (ground.slice, ground.load)]
            tried = {row.window: row.figures["goodput_rate"] for row in mine}
            window = best_window(tried)
            grounds.append(msgspec.structs.replace(ground, tried=tried, window=window))
            self._say(f"{ground.slice} at {ground.load:g} of capacity: window {window}, {tried[window]:.1%} good")
        return grounds

    def _task(self, ground: Ground, policy: str, seed: int, cap: int) -> Task:
        settings, point = self._settings, ground.calibration
        text = f"{WORKLOADS[ground.slice]}:rate={point.mean_rps!r},duration={settings.duration_s!r},slo_scale={point.slo_scale!r}"
        case = self._case(text, policy, seed, cap)
        return Task(slice=ground.slice, load=ground.load, policy=policy, seed=seed, case=case)

    def _case(self, text: str, policy: str, seed: int, cap: int, *, at_once: bool = False) -> Case:
        return Case(
            workload=text,
            fleet=self._fleet.with_window(cap),
            load=AT_ONCE if at_once else 1.0,
            policy=policy,
            admission=PRESETS["open" if at_once else LATE],
            warmup_s=0.0 if at_once else self._settings.warmup_s,
            seed=seed,
        )

    @staticmethod
    def _check(rows: Sequence[Row]) -> None:
        """What failed before the comparison began leaves nothing to stand on."""
        for row in rows:
            if row.error:
                raise StudyError(f"{row.slice}, window {row.window}: {row.error}")

    def _rows(self, tasks: Sequence[Task], *, tell: bool = False) -> list[Row]:
        """The tasks' rows, in their order."""
        say = self._say if tell else None
        return rows_of(tasks, Row, run_task, self._backend, known={}, on_row=lambda _place, _row: None, say=say)
