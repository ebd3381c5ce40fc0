"""Finds the demo's operating point and tunes its baselines, in virtual time with the same engine model and scheduler as in live runs."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

import msgspec
import numpy as np

from hmas.controller.core.types import Slo
from hmas.demo.load import demo_arrivals
from hmas.demo.settings import DemoSettings
from hmas.demo.virtual import Variant, run_virtual
from hmas.engines.sim.profile import Profile
from hmas.loadgen.dataset import Mixture, PromptData
from hmas.loadgen.score import score
from hmas.loadgen.workload import Arrival

MIDDLE = (0.25, 0.75)
"""Range of completions over which throughput is measured: before it the engines fill up, after it they run empty."""
CAPACITY_CAPS = (16, 20, 24, 32, 48, 64, 96)
SWEEP_CAPS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64)
KNEE_SHARE = 0.75

Runner = Callable[[Callable[["Task"], "TaskResult"], Iterable["Task"]], Iterable["TaskResult"]]
"""Maps a function over tasks, in order: `map`, or a process pool's."""


class CapPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Engines that work off a backlog with a window: their throughput and TPOT."""

    n_run: int
    throughput_rps: float
    tpot_ms: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The operating point.

    Attributes:
        capacity_rps: Requests per second of all engines together on a long backlog, with the best window.
        mean_rps: Arrival rate that follows from the capacity and the wanted load.
        knee: The smallest window that reaches three quarters of the capacity.
        slo_scale: Factor on H-MAS Table 6 with which the mean TPOT target is `tpot_headroom` times the knee's TPOT: the table has to be
            calibrated at an operating point (H-MAS E.5), and with a target at the knee itself noise would decide.
    """

    capacity_rps: float
    mean_rps: float
    knee: CapPoint
    slo_scale: float
    curve: list[CapPoint]


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate of a baseline, as simulated on the demo's own arrivals."""

    n_run: int
    overdue: str
    goodput_rps: float
    goodput_rate: float


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual run, with everything that a worker process needs."""

    arrivals: list[Arrival]
    profile: Profile
    variant: Variant
    engines: int
    warmup_s: float
    duration_s: float


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a virtual run; `middle_rps` is completions per second over `MIDDLE`."""

    variant: Variant
    middle_rps: float
    tpot_ms: float
    goodput_rps: float
    goodput_rate: float


def _bare(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Arrivals without texts, which virtual time does not need and which would have to be sent to worker processes."""
    return [
        msgspec.structs.replace(a, messages=(), body=a.body and msgspec.structs.replace(a.body, document=a.body.outline)) for a in arrivals
    ]


def run_task(task: Task) -> TaskResult:
    """Runs one task; a plain function, so that a process pool can take it."""
    results, end_s = run_virtual(task.arrivals, task.profile, task.variant, engines=task.engines)
    figures = score(results, warmup_s=task.warmup_s, arrivals_end_s=task.duration_s, run_end_s=end_s)
    tpots = [r.tpot_ms for r in results if r.tpot_ms >= 0]
    return TaskResult(
        variant=task.variant,
        middle_rps=middle_rps([r.at_s + r.total_ms / 1000.0 for r in results if r.outcome == "completed"]),
        tpot_ms=median(tpots) if tpots else 0.0,
        goodput_rps=figures.goodput_rps,
        goodput_rate=figures.goodput_rate,
    )


def middle_rps(ends_s: Sequence[float]) -> float:
    """Completions per second over `MIDDLE` of them, 0 with too few."""
    ordered = sorted(ends_s)
    low, high = (int(share * (len(ordered) - 1)) for share in MIDDLE)
    return (high - low) / (ordered[high] - ordered[low]) if high > low and ordered[high] > ordered[low] else 0.0


def calibrate(settings: DemoSettings, mixture: Mixture, prompts: PromptData, run: Runner) -> Calibration:
    """Measures the engines' capacity for this workload and derives rate and SLO scale. The same settings give the same result."""
    backlog = [msgspec.structs.replace(a, at_s=0.0) for a in _bare(demo_arrivals(settings.backlog(), mixture, prompts))]
    profile = settings.engine_profile()
    tasks = [
        Task(
            arrivals=backlog,
            profile=profile,
            variant=Variant(name="capacity", n_run=cap),
            engines=settings.engines,
            warmup_s=0.0,
            duration_s=1.0,
        )
        for cap in CAPACITY_CAPS
    ]
    curve = [CapPoint(n_run=done.variant.n_run, throughput_rps=done.middle_rps, tpot_ms=done.tpot_ms) for done in run(run_task, tasks)]
    return operating_point(curve, load=settings.load, headroom=settings.tpot_headroom, slos=[a.slo for a in backlog if a.declares])


def operating_point(curve: Sequence[CapPoint], *, load: float, headroom: float, slos: Sequence[Slo]) -> Calibration:
    """Rate and SLO scale that follow from a measured throughput curve.

    Args:
        curve: Points by rising window.
        load: Wanted mean arrival rate as a multiple of the capacity.
        headroom: Wanted mean TPOT target as a multiple of the TPOT at the knee.
        slos: The workload's targets at scale 1.
    """
    capacity_rps = max(point.throughput_rps for point in curve)
    knee = next(point for point in curve if point.throughput_rps >= KNEE_SHARE * capacity_rps)
    return Calibration(
        capacity_rps=capacity_rps,
        mean_rps=load * capacity_rps,
        knee=knee,
        slo_scale=round(headroom * knee.tpot_ms / fmean(slo.tpot_ms for slo in slos), 3),
        curve=list(curve),
    )


def smoothed(points: Sequence[CapPoint]) -> list[CapPoint]:
    """One point per window from repeated measurements on a machine with other load.

    Throughput is the mean of a window's measurements. TPOT grows linearly with the batch, so it is taken from the line through all points:
    one disturbed measurement then changes the targets only a little.
    """
    caps = sorted({point.n_run for point in points})
    slope, offset = np.polyfit([p.n_run for p in points], [p.tpot_ms for p in points], 1) if len(caps) > 1 else (0.0, points[0].tpot_ms)
    return [
        CapPoint(
            n_run=cap,
            throughput_rps=fmean(p.throughput_rps for p in points if p.n_run == cap),
            tpot_ms=float(offset + slope * cap),
        )
        for cap in caps
    ]


def sweep(
    arrivals: Sequence[Arrival], settings: DemoSettings, run: Runner, caps: Sequence[int] = SWEEP_CAPS
) -> tuple[list[SweepPoint], dict[str, int]]:
    """Tries every window with and without shedding on the demo's own arrivals.

    Returns:
        All points, and the best window for `keep` and for `shed`; among equals the smallest. The baselines are thus tuned on the same
        arrivals on which they are compared, which no operator could do.
    """
    profile, bare = settings.engine_profile(), _bare(arrivals)
    tasks = [
        Task(
            arrivals=bare,
            profile=profile,
            variant=Variant(name="sweep", n_run=cap, overdue=overdue),
            engines=settings.engines,
            warmup_s=settings.warmup_s,
            duration_s=settings.duration_s,
        )
        for overdue in ("keep", "shed")
        for cap in caps
        if cap <= profile.max_num_seqs
    ]
    points = [
        SweepPoint(
            n_run=done.variant.n_run, overdue=done.variant.overdue, goodput_rps=done.goodput_rps, goodput_rate=round(done.goodput_rate, 4)
        )
        for done in run(run_task, tasks)
    ]
    best = {
        overdue: max((p for p in points if p.overdue == overdue), key=lambda p: (p.goodput_rate, -p.n_run)).n_run
        for overdue in ("keep", "shed")
    }
    return points, best
