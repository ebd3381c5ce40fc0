"""The ablation in simulation: the same real prompts, scheduled on what different believers make of them, scored by the truth.

The fleet's capacity for these requests is measured on a backlog of them, the table of targets is put above the TPOT at the knee (H-MAS
E.5), and the window of the static policies is tuned for first come first served with shedding, on a workload that is not scored.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from hmas.controller.core.errors import HmasError
from hmas.demo.calibration import Calibration, best_window, middle_rps, operating_point
from hmas.loadgen.arrivals import ArrivalSpec
from hmas.loadgen.dataset import Mixture, load_mixture
from hmas.planning import StudyError
from hmas.planning.backends import Backend
from hmas.planning.case import PRESETS
from hmas.planning.fleet import Fleet, read_fleet
from hmas_lab.agents.asked import Pool, read_pool
from hmas_lab.agents.figures import summary
from hmas_lab.agents.held_out import held_out
from hmas_lab.agents.makers import make_believer
from hmas_lab.agents.masking import masking
from hmas_lab.agents.requests import Asked, draw, truths
from hmas_lab.agents.rows import KeptRows, Row, Task
from hmas_lab.agents.run import Made, run
from hmas_lab.agents.settings import ABOUT, AblationSettings, Belief, Way, way_of
from hmas_lab.compare import plain
from hmas_lab.simulated_rows import caps_of, curve_of, rows_of

TUNING_SEED = 0
TUNED_FOR = "fcfs"
OPEN = Way(policy="fcfs", admission=PRESETS["open"])


def run_task(data: bytes) -> bytes:
    """One task, encoded, to its row, encoded: a plain function, so that any process can take it."""
    task = msgspec.json.decode(data, type=Task)
    row = Row(load=task.load, way=task.way, belief=task.belief, seed=task.seed, window=task.window)
    try:
        return msgspec.json.encode(_made(task, row))
    except HmasError as error:
        return msgspec.json.encode(msgspec.structs.replace(row, error=str(error)))


@lru_cache(maxsize=1)
def _ground(data: str) -> tuple[Pool, Mixture]:
    return read_pool(Path(data), held_out(Path(data))), load_mixture()[0]


def requests_of(task: Task, fleet: Fleet) -> list[Asked]:
    """The task's requests."""
    settings = task.settings
    spec = ArrivalSpec(
        mean_rps=task.mean_rps,
        duration_s=settings.duration_s,
        process="bursty",
        period_s=settings.period_s,
        high=settings.high,
        low=settings.low,
    )
    pool, mixture = _ground(task.data)
    found = draw(pool, mixture, spec, seed=task.seed, slo_scale=task.slo_scale, model=fleet.model())
    return [_now(one) for one in found] if task.at_once else found


def _now(one: Asked) -> Asked:
    return msgspec.structs.replace(one, request=msgspec.structs.replace(one.request, arrival_s=0.0, deadline_s=float("inf")))


def _made(task: Task, row: Row) -> Row:
    settings = task.settings
    fleet = read_fleet(settings.fleet)
    fleet = fleet.with_window(task.window) if task.window else fleet
    requests = requests_of(task, fleet)
    known = truths(requests)
    way = OPEN if task.at_once else way_of(task.way)
    frequent = way.agents.get("perception_unknown") == "most-frequent"
    believer = make_believer(task.belief, lambda notice: known.get(notice.request_id), task.slo_scale, settings.net, most_frequent=frequent)
    made = run(requests, fleet, way, believer, answer_s=settings.answer_s, slo_scale=task.slo_scale)
    if made.violations:
        return msgspec.structs.replace(row, error=f"the independent checker objects: {made.violations[0]}")
    return msgspec.structs.replace(row, **_figures(task, requests, made))


def _figures(task: Task, requests: Sequence[Asked], made: Made) -> dict[str, Any]:
    settings = task.settings
    warmup_s = 0.0 if task.at_once else settings.warmup_s
    scored = made.score(warmup_s=warmup_s, duration_s=settings.duration_s)
    ends = [result.at_s + result.total_ms / 1000.0 for result in made.results if result.outcome == "completed"]
    tpots = [result.tpot_ms for result in made.results if result.tpot_ms >= 0.0]
    figures = {
        "middle_rps": middle_rps(ends),
        "tpot_ms_p50": median(tpots) if tpots else 0.0,
        "goodput_rps": scored.goodput_rps,
        "goodput_rate": scored.goodput_rate,
        "esg_rate": scored.esg_rate,
        "ttft_ms_p95": scored.ttft_ms.p95,
        "ttft_ms_started_p95": scored.ttft_ms_started.p95,
        "tpot_ms_p95": scored.tpot_ms.p95,
        "shed_rate": scored.rejected / max(1, scored.submitted),
        "submitted": float(scored.submitted),
        "switches": float(made.switches),
        **_beliefs(requests, made, warmup_s),
        **(masking(made.results, warmup_s=warmup_s, answer_s=settings.answer_s) if made.said else {}),
    }
    return {"figures": figures, "tasks": {name: one.goodput_rate for name, one in scored.per_task.items()}}


def _beliefs(requests: Sequence[Asked], made: Made, warmup_s: float) -> dict[str, float]:
    """How good the beliefs were on the scored requests of this very stream: right task types, and lengths as factors off the truth."""
    pairs = [
        (one.truth, said) for one in requests if one.request.arrival_s >= warmup_s and (said := made.said.get(one.request.id)) is not None
    ]
    if not pairs:
        return {}
    factors = np.abs([np.log(max(1.0, said.output_tokens)) - np.log(truth.output_tokens) for truth, said in pairs])
    right = fmean(truth.task == said.task_type for truth, said in pairs)
    return {"task_accuracy": right, "length_factor": float(np.exp(np.median(factors))), "answered": len(pairs) / max(1, len(requests))}


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """A load: its operating point, the windows that were tried for the static policies (goodput rate by window), and the best."""

    load: float
    calibration: Calibration
    tried: dict[int, float]
    window: int


def _ground_at(point: Calibration, load: float, *, window: int) -> Ground:
    """A load before any window was tried there."""
    return Ground(load=load, calibration=msgspec.structs.replace(point, mean_rps=load * point.capacity_rps), tried={}, window=window)


class SimulatedAblation:
    """The whole ablation; `say` is told where it stands."""

    def __init__(
        self, data: Path, settings: AblationSettings, backend: Backend, say: Callable[[str], None], kept: KeptRows | None = None
    ) -> None:
        """Checks what can be checked without a simulation; `kept` holds rows of an earlier run that was broken off.

        Raises:
            ConfigError: The fleet cannot be read, or no window is left to try.
            TraceError: The prompts cannot be read.
        """
        self._data = str(data)
        self._settings = settings
        self._backend = backend
        self._say = say
        self._kept = kept if kept is not None else KeptRows(None)
        self._fleet = read_fleet(settings.fleet)
        self._caps = caps_of(self._fleet, settings.caps)
        self._pool, _ = _ground(self._data)

    def run(self) -> dict[str, Any]:
        """Runs it all. The same settings give the same document, however many processes work on it.

        Raises:
            StudyError: A run failed while the operating point was looked for.
        """
        settings = self._settings
        grounds = self._tune(self._calibrate())
        tasks = [
            self._task(ground, way, belief, seed)
            for ground in grounds
            for seed in range(1, settings.seeds + 1)
            for way in settings.ways
            for belief in settings.beliefs
        ]
        self._say(f"{len(tasks)} runs: {len(settings.ways)} ways, {len(settings.beliefs)} beliefs, {settings.seeds} seeds")
        rows = self._rows(tasks, tell=True)
        failed = [f"load {row.load:g}, {row.way}, {row.belief}, seed {row.seed}: {row.error}" for row in rows if row.error]
        return {
            "version": 1,
            "settings": msgspec.to_builtins(settings),
            "about": {belief: ABOUT[belief] for belief in settings.beliefs},
            "fleet": self._fleet.name,
            "prompts": {task.value: len(found) for task, found in self._pool.prompts.items()},
            "models": list(self._pool.models),
            "grounds": plain(grounds),
            "summary": summary([msgspec.to_builtins(row) for row in rows if not row.error], settings),
            "rows": plain(rows),
            "broken": failed,
        }

    def _calibrate(self) -> Calibration:
        """Capacity for these requests, from a backlog of them at every window."""
        settings = self._settings
        rate = settings.backlog * self._fleet.size / settings.duration_s
        tasks = [
            Task(
                data=self._data,
                settings=settings,
                load=0.0,
                mean_rps=rate,
                slo_scale=1.0,
                window=cap,
                way=TUNED_FOR,
                belief="none",
                seed=TUNING_SEED,
                at_once=True,
            )
            for cap in self._caps
        ]
        rows = self._checked(self._rows(tasks))
        curve = curve_of(rows, self._fleet.name)
        slos = [one.truth.slo for one in requests_of(tasks[0], self._fleet)]
        found = operating_point(curve, load=1.0, headroom=settings.tpot_headroom, slos=slos)
        self._say(f"capacity {found.capacity_rps:.2f} requests/s, knee at a window of {found.knee.n_run}, SLOs x {found.slo_scale:g}")
        return found

    def _tune(self, point: Calibration) -> list[Ground]:
        """The best window of each load for the static policies, if there are any; of equals the smaller one."""
        if all(way_of(way).steered for way in self._settings.ways):
            return [_ground_at(point, load, window=0) for load in self._settings.loads]
        bare = [_ground_at(point, load, window=cap) for load in self._settings.loads for cap in self._caps]
        rows = self._checked(self._rows([self._task(ground, TUNED_FOR, "none", TUNING_SEED) for ground in bare]))
        grounds = []
        for load in self._settings.loads:
            tried = {row.window: row.figures["goodput_rate"] for row in rows if row.load == load}
            window = best_window(tried)
            first = next(ground for ground in bare if ground.load == load)
            grounds.append(msgspec.structs.replace(first, tried=tried, window=window))
            self._say(f"load {load:g}: window {window}, {tried[window]:.1%} good by FCFS with shedding")
        return grounds

    def _task(self, ground: Ground, way: str, belief: Belief, seed: int) -> Task:
        point = ground.calibration
        return Task(
            data=self._data,
            settings=self._settings,
            load=ground.load,
            mean_rps=point.mean_rps,
            slo_scale=point.slo_scale,
            window=0 if way_of(way).steered else ground.window,
            way=way,
            belief=belief,
            seed=seed,
        )

    @staticmethod
    def _checked(rows: Sequence[Row]) -> Sequence[Row]:
        """What failed before the comparison began leaves nothing to stand on."""
        for row in rows:
            if row.error:
                raise StudyError(f"window {row.window}: {row.error}")
        return rows

    def _rows(self, tasks: Sequence[Task], *, tell: bool = False) -> list[Row]:
        """The tasks' rows, in their order."""
        known = {place: row for place, task in enumerate(tasks) if (row := self._kept.row(task)) is not None}

        def keep(place: int, row: Row) -> None:
            self._kept.keep(tasks[place], row)

        return rows_of(tasks, Row, run_task, self._backend, known=known, on_row=keep, say=self._say if tell else None)
