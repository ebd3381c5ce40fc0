"""The comparison on a real vLLM: capacity, SLOs and the baselines' windows are measured on the engine itself, then blocks of runs."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from controller.runtime.clock import SystemClock
from hmas.demo.calibration import Calibration, CapPoint, SweepPoint, middle_rps, operating_point, smoothed
from hmas.demo.field_load import FieldLoad
from hmas.demo.field_settings import FieldSettings
from hmas.demo.live import LiveRun, live_run
from hmas.demo.outcome import DEFAULT, OURS
from hmas.demo.progress import Reporter
from hmas.demo.settings import Span
from hmas.demo.site import DemoBroken, make_site
from hmas.demo.virtual import Overdue, Variant
from hmas.demo.vllm_engine import VllmServer, running_vllm
from hmas.lab.dataset import load_mixture
from hmas.lab.loadgen import Progress
from hmas.lab.traces import Trace
from hmas.lab.workload import Arrival

MODEL = "tiny"
BASELINE, BASELINE_SHED = "fcfs-best-cap", "fcfs-best-cap-shed"
NAMES = (DEFAULT, BASELINE, BASELINE_SHED, OURS)
STARTING, CALIBRATING, SWEEPING = "starting vLLM", "measuring capacity", "tuning the baselines"
BACKLOG_DRAIN_S = 120.0


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One repetition: the four runs on the same arrivals.

    Attributes:
        rejected: Runs that were repeated because the machine stood still under them.
    """

    number: int
    arrivals: int
    runs: dict[str, LiveRun]
    rejected: int


class FieldResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the comparison found out."""

    settings: FieldSettings
    server: VllmServer
    trace: str
    calibration: Calibration
    sweep: list[SweepPoint]
    best: dict[str, int]
    blocks: list[Block]
    elapsed_s: float

    @property
    def broken(self) -> list[str]:
        """All that must not be, in words."""
        return [f"block {block.number}, {name}: {text}" for block in self.blocks for name, run in block.runs.items() for text in run.broken]

    def goodputs(self, name: str) -> list[float]:
        """Goodput per second of each block's run of that name."""
        return [block.runs[name].score.goodput_rps for block in self.blocks]


class FieldStudy:
    """One comparison, step by step; logs and raw results lie under `out`."""

    def __init__(self, settings: FieldSettings, server: VllmServer, trace: Trace, out: Path, config: Mapping[str, Any]) -> None:
        """Prepares the load; nothing runs yet.

        Raises:
            TraceError: The trace cannot be used.
        """
        mixture, prompts = load_mixture()
        self._settings = settings
        self._server = server
        self._trace = trace
        self._config = config
        self._load = FieldLoad(trace, settings, mixture, prompts)
        self._clock = SystemClock()
        tenants = sorted({tenant for kind in mixture.kinds.values() for tenant in kind.tenants})
        self._site = make_site(out, tenants, kind="vllm", model=MODEL)
        span = settings.run_span
        one_s = span.duration_s + span.warmup_s + 6.0
        sweeping_s = 2 * len(settings.sweep_caps) * (settings.sweep_span.duration_s + span.warmup_s + 3.0)
        phases = [(STARTING, 60.0), (CALIBRATING, 20.0 * settings.capacity_rounds * len(settings.capacity_caps)), (SWEEPING, sweeping_s)]
        self._reporter = Reporter(self._clock, [*phases, *((f"block {i + 1}", 4 * one_s) for i in range(settings.blocks))])

    def run(self) -> FieldResult:
        """Runs it all.

        Raises:
            DemoBroken: Something did not come up.
        """
        try:
            return asyncio.run(self._run())
        finally:
            self._reporter.done()

    async def _run(self) -> FieldResult:
        self._reporter.phase(STARTING)
        async with running_vllm(self._server, self._site.folder, MODEL) as url:
            self._site.engines["vllm-1"] = url
            self._reporter.phase(CALIBRATING)
            calibration = await self._calibrate()
            self._reporter.phase(SWEEPING)
            points, best = await self._sweep(calibration)
            blocks = []
            for number in range(self._settings.blocks):
                self._reporter.phase(f"block {number + 1}")
                blocks.append(await self._block(number, calibration, best))
        return FieldResult(
            settings=self._settings,
            server=self._server,
            trace=self._trace.source,
            calibration=calibration,
            sweep=points,
            best=best,
            blocks=blocks,
            elapsed_s=self._reporter.elapsed_s,
        )

    async def _calibrate(self) -> Calibration:
        """Works off a backlog at each window; rate and SLO scale follow."""
        backlog = self._load.backlog()
        span = Span(warmup_s=0.0, duration_s=1.0, drain_s=BACKLOG_DRAIN_S)
        settings = self._settings
        points = []
        for number in range(settings.capacity_rounds):
            for cap in settings.capacity_caps if number % 2 == 0 else reversed(settings.capacity_caps):
                run = await self._one(Variant(name=f"capacity-{cap}", n_run=cap), backlog, span)
                ends = [r.at_s + r.total_ms / 1000.0 for r in run.results if r.outcome == "completed"]
                tpots = [r.tpot_ms for r in run.results if r.tpot_ms >= 0]
                if len(ends) < len(backlog) // 2 or not tpots:
                    raise DemoBroken(f"only {len(ends)} of {len(backlog)} requests completed while measuring capacity at a window of {cap}")
                points.append(CapPoint(n_run=cap, throughput_rps=middle_rps(ends), tpot_ms=median(tpots)))
                self._reporter.say(f"window {cap}: {points[-1].throughput_rps:.1f} requests/s, TPOT {points[-1].tpot_ms:.1f} ms")
        return operating_point(smoothed(points), load=settings.load, headroom=settings.tpot_headroom, slos=[a.slo for a in backlog])

    async def _sweep(self, calibration: Calibration) -> tuple[list[SweepPoint], dict[str, int]]:
        """Tries every window with and without shedding, live, on a piece of the trace that no block uses."""
        span = self._settings.sweep_span
        arrivals = self._load.piece(0, mean_rps=calibration.mean_rps, duration_s=span.duration_s, slo_scale=calibration.slo_scale)
        points = []
        choices: tuple[Overdue, ...] = ("keep", "shed")
        for overdue in choices:
            for cap in self._settings.sweep_caps:
                run = await self._steady(Variant(name=f"sweep-{overdue}-{cap}", n_run=cap, overdue=overdue), arrivals, span)
                points.append(
                    SweepPoint(n_run=cap, overdue=overdue, goodput_rps=run.score.goodput_rps, goodput_rate=run.score.goodput_rate)
                )
                self._reporter.say(f"FCFS, window {cap}, {overdue}: {run.score.goodput_rps:.2f} good/s")
        best: dict[str, int] = {
            overdue: max((p for p in points if p.overdue == overdue), key=lambda p: (p.goodput_rate, -p.n_run)).n_run for overdue in choices
        }
        return points, best

    async def _block(self, number: int, calibration: Calibration, best: Mapping[str, int]) -> Block:
        span = self._settings.run_span
        arrivals = self._load.piece(number + 1, mean_rps=calibration.mean_rps, duration_s=span.duration_s, slo_scale=calibration.slo_scale)
        variants = {
            DEFAULT: Variant(name=DEFAULT),
            BASELINE: Variant(name=BASELINE, n_run=best["keep"]),
            BASELINE_SHED: Variant(name=BASELINE_SHED, n_run=best["shed"], overdue="shed"),
            OURS: Variant(name=OURS, policy="edf", overdue="demote"),
        }
        runs: dict[str, LiveRun] = {}
        rejected = 0
        for name in NAMES if number % 2 == 0 else reversed(NAMES):
            folder_name = f"block-{number + 1}-{name}"
            for _ in range(self._settings.retries + 1):
                run = await self._one(msgspec.structs.replace(variants[name], name=folder_name), arrivals, span, agents=name == OURS)
                if not run.summary.noisy:
                    break
                rejected += 1
                self._reporter.say(f"{folder_name}: rejected, the clock stood still for {run.summary.max_gap_s:.2f} s")
            runs[name] = run
            s = run.score
            self._reporter.say(
                f"{folder_name}: {s.goodput_rps:.2f} good/s ({s.good} of {s.submitted}), TTFT p95 {s.ttft_ms.p95:.0f} ms, "
                f"TPOT p95 {s.tpot_ms.p95:.1f} ms"
            )
        return Block(number=number + 1, arrivals=len(arrivals), runs=runs, rejected=rejected)

    async def _steady(self, variant: Variant, arrivals: Sequence[Arrival], span: Span) -> LiveRun:
        """One run, repeated once where the machine's noise has spoilt it."""
        run = await self._one(variant, arrivals, span)
        return await self._one(variant, arrivals, span) if run.summary.noisy else run

    async def _one(self, variant: Variant, arrivals: Sequence[Arrival], span: Span, *, agents: bool = False) -> LiveRun:
        def on_progress(progress: Progress) -> None:
            self._reporter.tick(f"{variant.name}: {progress.sent}/{len(arrivals)} sent, {progress.good} good of {progress.ended} ended")

        return await live_run(
            self._site,
            variant,
            arrivals,
            span,
            agents=agents,
            config=self._config if agents else {},
            clock=self._clock,
            on_progress=on_progress,
        )
