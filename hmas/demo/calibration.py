"""Virtual runs of the demo's workload: its operating point, and the tuning of its baselines, with the live runs' scheduler and engines."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Literal

import msgspec

from hmas.controller.config.section import SloConfig
from hmas.controller.core.types import DEFAULT_IMPORTANCE, Controls, Estimates, Request, Slo, TaskType
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival as SimArrival
from hmas.controller.simulation import simulate
from hmas.demo.settings import DemoSettings, demo_arrivals
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile
from hmas.loadgen.dataset import Mixture, PromptData
from hmas.loadgen.results import SIMULATED_OUTCOMES, Result, empty_result, with_record
from hmas.loadgen.score import score
from hmas.loadgen.workload import Arrival
from hmas.planning.backends import Backend

MIDDLE = (0.25, 0.75)
"""Range of completions over which throughput is measured: before it the engines fill up, after it they run empty."""
CAPACITY_CAPS = (16, 20, 24, 32, 48, 64, 96)
SWEEP_CAPS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64)
KNEE_SHARE = 0.75
Overdue = Literal["keep", "demote", "shed"]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A static configuration of the scheduler.

    Attributes:
        name: Its name in the report.
        n_run: Requests in flight per engine, 0 for the engine's ceiling.
        overdue: The treatment of a request whose TTFT deadline has passed before dispatch.
        foresight: Whether a live gateway without agents admits as with agents (fence, TPOT guard, predicted lateness).
    """

    name: str
    policy: str = "fcfs"
    n_run: int = 0
    overdue: Overdue = "keep"
    foresight: bool = False


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
    settings: DemoSettings
    variant: Variant


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a virtual run; `middle_rps` is completions per second over `MIDDLE`."""

    middle_rps: float
    tpot_ms: float
    goodput_rps: float
    goodput_rate: float


def run_virtual(arrivals: Sequence[Arrival], profile: Profile, variant: Variant, *, engines: int) -> tuple[list[Result], float]:
    """Returns the results as a client without network would measure them, and the virtual time at the end."""
    names = [f"engine-{i + 1}" for i in range(engines)]
    scheduler = Scheduler(
        settings=SchedulerSettings(overdue=variant.overdue, fence=False),
        instances=[InstanceSpec(name=name, capacity_n_run=profile.max_num_seqs) for name in names],
        router=make_router("least-loaded"),
        policy=variant.policy,
    )
    for name in names:
        scheduler.set_controls(name, Controls(n_run=variant.n_run or profile.max_num_seqs))
    outcome = simulate([_simulated(i, a) for i, a in enumerate(arrivals)], {name: EngineModel(profile) for name in names}, scheduler)
    results = [
        with_record(
            empty_result(index, arrival),
            record,
            outcome="lost" if record.outcome is None else SIMULATED_OUTCOMES[record.outcome],
            detail=record.reason,
        )
        for index, (arrival, record) in enumerate(zip(arrivals, outcome.records, strict=True))
    ]
    return results, outcome.end_s


def _simulated(index: int, arrival: Arrival) -> SimArrival:
    request = Request(
        id=f"{index:08d}",
        tenant=arrival.tenant,
        model="demo",
        arrival_s=arrival.at_s,
        prompt_tokens=arrival.prompt_tokens,
        max_output_tokens=arrival.max_tokens or None,
        declared_slo=arrival.slo if arrival.declares else None,
    )
    # A gateway without agents applies the targets of an unknown task to a request that declares none.
    slo = arrival.slo if arrival.declares else SloConfig().targets().target(TaskType.UNKNOWN, DEFAULT_IMPORTANCE)
    return SimArrival(request=request, estimate=lambda _request, _now_s: Estimates(slo=slo), output_tokens=arrival.output_tokens)


def run_task(data: bytes) -> bytes:
    """Runs an encoded task and returns its encoded result; a plain function, so that it can run in any process."""
    task = msgspec.json.decode(data, type=Task)
    settings = task.settings
    results, end_s = run_virtual(task.arrivals, settings.engine_profile(), task.variant, engines=settings.engines)
    figures = score(results, warmup_s=settings.warmup_s, arrivals_end_s=settings.duration_s, run_end_s=end_s)
    tpots = [r.tpot_ms for r in results if r.tpot_ms >= 0]
    return msgspec.json.encode(
        TaskResult(
            middle_rps=middle_rps([r.at_s + r.total_ms / 1000.0 for r in results if r.outcome == "completed"]),
            tpot_ms=median(tpots) if tpots else 0.0,
            goodput_rps=figures.goodput_rps,
            goodput_rate=figures.goodput_rate,
        )
    )


def _run(arrivals: Sequence[Arrival], settings: DemoSettings, variants: Sequence[Variant], backend: Backend) -> list[TaskResult]:
    """The results of the variants on these arrivals, in order."""
    # Virtual time does not need texts, and worker processes would have to be sent them.
    bare = [
        msgspec.structs.replace(a, messages=(), body=a.body and msgspec.structs.replace(a.body, document=a.body.outline)) for a in arrivals
    ]
    tasks = [msgspec.json.encode(Task(arrivals=bare, settings=settings, variant=variant)) for variant in variants]
    done = dict(backend(run_task, tasks))
    return [msgspec.json.decode(done[place], type=TaskResult) for place in range(len(tasks))]


def middle_rps(ends_s: Sequence[float]) -> float:
    """Completions per second over `MIDDLE` of them, 0 with too few."""
    ordered = sorted(ends_s)
    low, high = (int(share * (len(ordered) - 1)) for share in MIDDLE)
    return (high - low) / (ordered[high] - ordered[low]) if high > low and ordered[high] > ordered[low] else 0.0


def calibrate(settings: DemoSettings, mixture: Mixture, prompts: PromptData, backend: Backend) -> Calibration:
    """Measures the engines' capacity for this workload and derives rate and SLO scale. The same settings give the same result."""
    backlog = [msgspec.structs.replace(a, at_s=0.0) for a in demo_arrivals(settings.backlog(), mixture, prompts)]
    found = _run(backlog, settings, [Variant(name="capacity", n_run=cap) for cap in CAPACITY_CAPS], backend)
    curve = [CapPoint(n_run=cap, throughput_rps=one.middle_rps, tpot_ms=one.tpot_ms) for cap, one in zip(CAPACITY_CAPS, found, strict=True)]
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


def sweep(
    arrivals: Sequence[Arrival], settings: DemoSettings, backend: Backend, caps: Sequence[int] = SWEEP_CAPS
) -> tuple[list[SweepPoint], dict[str, int]]:
    """Tries every window with and without shedding on the demo's own arrivals.

    Returns:
        All points, and the best window for `keep` and for `shed`. The baselines are thus tuned on the same arrivals on which they are
        compared, which no operator could do.
    """
    most = settings.engine_profile().max_num_seqs
    late: tuple[Overdue, ...] = ("keep", "shed")
    variants = [Variant(name="sweep", n_run=cap, overdue=overdue) for overdue in late for cap in caps if cap <= most]
    points = [
        SweepPoint(n_run=variant.n_run, overdue=variant.overdue, goodput_rps=one.goodput_rps, goodput_rate=round(one.goodput_rate, 4))
        for variant, one in zip(variants, _run(arrivals, settings, variants, backend), strict=True)
    ]
    return points, best_windows(points)


def best_windows(points: Sequence[SweepPoint]) -> dict[str, int]:
    """The window with the highest goodput rate by treatment of overdue requests; among equals the smallest."""
    tried: dict[str, dict[int, float]] = {}
    for point in points:
        tried.setdefault(point.overdue, {})[point.n_run] = point.goodput_rate
    return {overdue: best_window(rates) for overdue, rates in tried.items()}


def best_window(tried: Mapping[int, float]) -> int:
    """The window with the highest goodput rate; among equals the smallest."""
    return max(tried, key=lambda cap: (tried[cap], -cap))
