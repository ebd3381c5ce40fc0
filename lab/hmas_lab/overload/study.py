"""The overload sweep: from half of what the fleet can take to three times of it, the same arrivals under every regime."""

from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import fmean, median
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.controller.core.errors import ConfigError
from hmas.controller.core.types import Estimates, OutcomeKind, Request
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.settings import SHIPPED
from hmas.controller.simulation import simulate
from hmas.demo.calibration import middle_rps
from hmas.planning import StudyError
from hmas.planning.backends import Backend
from hmas.planning.case import AGENTS, PRESETS, Case
from hmas.planning.fleet import Fleet, read_fleet
from hmas.planning.loads import open_load
from hmas.planning.report import make_report
from hmas.planning.running import Run, build, run_case

VERSION = 1
AT_ONCE = 1e6
"""A workload this many times faster than its own comes all at once."""
TUNING_SEED = 0
OPEN, SHED = PRESETS["open"], PRESETS["shed"]
ENGINE, CAP, CAP_SHED, STATIC, PRODUCT = "engine-default", "fcfs-best-cap", "fcfs-best-cap-shed", "hmas-no-agents", "hmas"
REGIMES: dict[str, str] = {
    ENGINE: "first come first served, the engine's own window",
    CAP: "first come first served under the window that is best at this load",
    CAP_SHED: "the same, and what has passed its TTFT target is dropped",
    STATIC: "H-MAS with its default settings, agents switched off",
    PRODUCT: "H-MAS with its default settings",
}
CALIBRATED = (CAP, CAP_SHED, STATIC)
"""Regimes under which the told waits are held against the real ones. Where windows are steered, the pace changes under the estimate."""


class OverloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is swept.

    Attributes:
        fleet: As `hmas simulate` takes it.
        loads: Arrival rates over the fleet's capacity.
        seeds: Workloads at each load, seeds 1 and up; windows are tuned on seed 0, which is not scored.
        span_s: Length of the arrivals, the same at every load; `warmup_s` of it is not scored.
        backlog: Requests by which capacity is measured.
        caps: Windows that are tried.
    """

    fleet: str = "1xa100-qwen3-8b"
    loads: tuple[Annotated[float, Meta(gt=0, le=10)], ...] = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
    seeds: Annotated[int, Meta(ge=1, le=100)] = 2
    span_s: Annotated[float, Meta(ge=20, le=86_400)] = 140.0
    warmup_s: Annotated[float, Meta(ge=0)] = 20.0
    backlog: Annotated[int, Meta(ge=50)] = 600
    caps: tuple[Annotated[int, Meta(ge=1)], ...] = (16, 24, 32, 48)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run and what it is for; `judges_waits`: hold what clients would have been told against what happened."""

    load: float
    regime: str
    seed: int
    window: int
    case: Case
    judges_waits: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Attributes:
        good_tps: Prompt and output tokens per second of requests that met both targets: beside `goodput_rps` it shows whether goodput
            is held up by serving the short ones.
        waits: What a client sent away at a request's arrival would have been told, and how long that request then waited: seconds.
    """

    load: float
    regime: str
    seed: int
    window: int
    goodput_rps: float
    goodput_rate: float
    good_tps: float
    throughput_rps: float
    ttft_ms_p50: float
    tpot_ms_p95: float
    shed: int
    submitted: int
    violations: list[str]
    waits: list[tuple[float, float]] = []


def run_task(data: bytes) -> bytes:
    """One task, encoded, to its row, encoded: a plain function, so that any process can take it."""
    task = msgspec.json.decode(data, type=Task)
    run = run_case(task.case)
    scored = make_report(run).score
    good_tokens = sum(
        record.prompt_tokens + record.output_tokens for record in run.records if record.slo_met and record.arrival_s >= task.case.warmup_s
    )
    row = Row(
        load=task.load,
        regime=task.regime,
        seed=task.seed,
        window=task.window,
        goodput_rps=scored.goodput_rps,
        goodput_rate=scored.goodput_rate,
        good_tps=good_tokens / scored.span_s,
        throughput_rps=scored.throughput_rps,
        ttft_ms_p50=scored.ttft_ms.p50,
        tpot_ms_p95=scored.tpot_ms.p95,
        shed=scored.rejected,
        submitted=scored.submitted,
        violations=run.violations,
        waits=told_waits(task.case) if task.judges_waits else [],
    )
    return msgspec.json.encode(row)


def told_waits(case: Case) -> list[tuple[float, float]]:
    """Retry-After as it would be told at each arrival, and how long the request that came then really waited, where it was served.

    Both in seconds, and both held to the range that is told, 1 to 60 s.
    """
    load, history, told = open_load(case), History(), dict[str, float]()
    scheduler, engines = build(case)

    def estimate(request: Request, now_s: float) -> Estimates:
        told[request.id] = scheduler.retry_after_s(request.model, now_s)
        return history.estimate(request)

    def on_end(ended: Ended, now_s: float) -> None:
        history.learn(completion_of(ended, now_s))

    feed = load.feed(case.fleet.model(case.model), estimate)
    result = simulate(feed.arrivals, engines, scheduler, on_end=on_end)
    return [
        (told[record.request_id], min(60.0, max(1.0, record.queue_ms / 1000.0)))
        for record in result.records
        if record.arrival_s >= case.warmup_s and record.queue_ms >= 0.0 and record.outcome is OutcomeKind.COMPLETED
    ]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How true the told waits were: requests looked at, medians of the absolute error and of the error over the real wait."""

    requests: int
    median_error_s: float
    median_relative: float
    median_wait_s: float


def calibration(waits: Sequence[tuple[float, float]]) -> Calibration:
    """Of those that waited long enough to matter: more than the 1 s that is told in any case, less than the 60 s that it ends at."""
    told = [(said, was) for said, was in waits if 1.0 < was < 60.0]
    if not told:
        return Calibration(requests=0, median_error_s=0.0, median_relative=0.0, median_wait_s=0.0)
    return Calibration(
        requests=len(told),
        median_error_s=median(abs(said - was) for said, was in told),
        median_relative=median(abs(said - was) / was for said, was in told),
        median_wait_s=median(was for _, was in told),
    )


class Sweep:
    """The whole of it; `say` is told where it stands."""

    def __init__(self, settings: OverloadSettings, backend: Backend, say: Callable[[str], None]) -> None:
        """Reads the fleet.

        Raises:
            ConfigError: The fleet cannot be read, or the warm-up is not shorter than the span.
        """
        if settings.warmup_s >= settings.span_s:
            raise ConfigError(f"warm-up is {settings.warmup_s:g} s; allowed: less than the span of {settings.span_s:g} s")
        self._settings = settings
        self._backend = backend
        self._say = say
        self._fleet: Fleet = read_fleet(settings.fleet)
        self._own_rps = 0.0

    def run(self) -> dict[str, Any]:
        """Measures capacity, tunes the windows, sweeps. The same settings give the same document.

        Raises:
            StudyError: The independent checker objects to a run.
        """
        settings = self._settings
        self._own_rps = self._capacity()
        self._say(f"capacity {self._own_rps:.2f} requests/s")
        tuned = self._tune()
        tasks = [
            self._task(load, regime, seed, tuned[regime, load])
            for load in settings.loads
            for regime in REGIMES
            for seed in range(1, settings.seeds + 1)
        ]
        rows = self._rows(tasks)
        return {
            "version": VERSION,
            "settings": msgspec.to_builtins(settings),
            "capacity_rps": self._own_rps,
            "regimes": REGIMES,
            "points": [self._point(load, regime, rows) for load in settings.loads for regime in REGIMES],
            "flatness": {
                regime: {name: flatness(self._curve(regime, name, rows)) for name in ("goodput_rps", "good_tps")} for regime in REGIMES
            },
            "retry_after": {
                regime: msgspec.to_builtins(calibration([wait for row in rows if row.regime == regime for wait in row.waits]))
                for regime in CALIBRATED
            },
        }

    def _capacity(self) -> float:
        """Completions per second in the middle of a backlog under the engine's own window."""
        case = self._case(ENGINE, 0, TUNING_SEED, rate=10.0, count=self._settings.backlog)
        run: Run = run_case(msgspec.structs.replace(case, load=AT_ONCE, warmup_s=0.0))
        ends_s = [r.arrival_s + r.total_ms / 1000.0 for r in run.records if r.outcome is OutcomeKind.COMPLETED]
        return middle_rps(ends_s)

    def _tune(self) -> dict[tuple[str, float], int]:
        """The window of each regime at each load: for first come first served the best on a workload that is not scored."""
        settings = self._settings
        caps = [cap for cap in settings.caps if cap <= min(kind.n_run for kind in self._fleet.kinds)]
        tasks = [self._task(load, regime, TUNING_SEED, cap) for load in settings.loads for regime in (CAP, CAP_SHED) for cap in caps]
        rows = self._rows([msgspec.structs.replace(task, judges_waits=False) for task in tasks])
        windows = dict.fromkeys(((regime, load) for regime in REGIMES for load in settings.loads), 0)
        for load in settings.loads:
            for regime in (CAP, CAP_SHED):
                tried = [row for row in rows if (row.load, row.regime) == (load, regime)]
                windows[regime, load] = max(tried, key=lambda row: (row.goodput_rps, -row.window)).window
        self._say("windows are tuned")
        return windows

    def _task(self, load: float, regime: str, seed: int, window: int) -> Task:
        case = self._case(regime, window, seed, rate=load * self._own_rps)
        return Task(load=load, regime=regime, seed=seed, window=window, case=case, judges_waits=regime in CALIBRATED and load > 1.0)

    def _case(self, regime: str, window: int, seed: int, *, rate: float, count: int = 0) -> Case:
        product = regime in {STATIC, PRODUCT}
        settings = self._settings
        return Case(
            workload=f"poisson:rate={rate:.6f},duration={settings.span_s if not count else 2.0 * count / rate:g}",
            fleet=self._fleet.with_window(window) if window else self._fleet,
            policy=DEFAULT_POLICY if product else "fcfs",
            admission=SHIPPED if product else SHED if regime == CAP_SHED else OPEN,
            agents=AGENTS if regime == PRODUCT else (),
            warmup_s=settings.warmup_s,
            limit=count,
            seed=seed,
        )

    def _rows(self, tasks: Sequence[Task]) -> list[Row]:
        rows: dict[int, Row] = {}
        with closing(self._backend(run_task, [msgspec.json.encode(task) for task in tasks])) as answers:
            for place, data in answers:
                row = rows[place] = msgspec.json.decode(data, type=Row)
                if row.violations:
                    raise StudyError(f"{row.regime} at load {row.load:g}, seed {row.seed}: the checker objects: {row.violations[0]}")
        return [rows[place] for place in range(len(tasks))]

    def _curve(self, regime: str, name: str, rows: Sequence[Row]) -> list[float]:
        return [fmean(getattr(row, name) for row in rows if (row.load, row.regime) == (load, regime)) for load in self._settings.loads]

    def _point(self, load: float, regime: str, rows: Sequence[Row]) -> dict[str, Any]:
        mine = [row for row in rows if (row.load, row.regime) == (load, regime)]
        figures = ("goodput_rps", "goodput_rate", "good_tps", "throughput_rps", "ttft_ms_p50", "tpot_ms_p95")
        return {
            "load": load,
            "regime": regime,
            "window": mine[0].window,
            **{name: round(fmean(getattr(row, name) for row in mine), 4) for name in figures},
            "shed_rate": round(sum(row.shed for row in mine) / max(1, sum(row.submitted for row in mine)), 4),
        }


def flatness(goodputs: Sequence[float]) -> dict[str, float]:
    """Goodput along rising loads: its peak, what is left of it at the highest load, and the least of it after the peak, as shares."""
    peak = max(goodputs, default=0.0)
    if peak <= 0.0:
        return {"peak": 0.0, "last_share": 0.0, "least_share_after_peak": 0.0}
    after = goodputs[goodputs.index(peak) :]
    return {"peak": round(peak, 4), "last_share": round(goodputs[-1] / peak, 4), "least_share_after_peak": round(min(after) / peak, 4)}
