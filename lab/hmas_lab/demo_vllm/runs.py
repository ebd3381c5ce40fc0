"""Runs on one live engine: its capacity and SLOs, the baselines' best windows, and runs repeated under which the machine stood still."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Protocol

import numpy as np

from hmas.controller.runtime.clock import Clock
from hmas.demo.calibration import Calibration, CapPoint, Overdue, SweepPoint, Variant, best_windows, middle_rps, operating_point
from hmas.demo.live import LiveRun, live_run
from hmas.demo.progress import Reporter
from hmas.demo.settings import Span
from hmas.demo.site import EVERYBODY, DemoBroken, Site
from hmas.loadgen.process import Progress
from hmas.loadgen.workload import Arrival
from hmas_lab.demo_vllm.settings import FieldSettings
from hmas_lab.spoilt import rejected, until_quiet

BACKLOG_DRAIN_S = 120.0


class Backlog(Protocol):
    """What capacity is measured with; `hmas_lab.demo_vllm.load.FieldLoad` is one."""

    def backlog(self) -> list[Arrival]:
        """Requests that are all there at once."""
        ...


class Execute(Protocol):
    """Sends arrivals through a gateway of a variant, by itself or with all agents, and tells what became of them."""

    async def __call__(self, variant: Variant, arrivals: Sequence[Arrival], span: Span, *, agents: bool = False) -> LiveRun:
        """Makes one run."""
        ...


def on_site(site: Site, *, clock: Clock, reporter: Reporter, config: Mapping[str, Any] | None = None) -> Execute:
    """Runs on the site's engines, through a fresh gateway process each; `config` goes to gateways with agents."""

    async def execute(variant: Variant, arrivals: Sequence[Arrival], span: Span, *, agents: bool = False) -> LiveRun:
        def on_progress(progress: Progress) -> None:
            reporter.tick(f"{variant.name}: {progress.sent}/{len(arrivals)} sent, {progress.good} good of {progress.ended} ended")

        return await live_run(
            site,
            variant,
            arrivals,
            span,
            cast=EVERYBODY if agents else None,
            config=(config or {}) if agents else {},
            clock=clock,
            on_progress=on_progress,
        )

    return execute


class FieldRuns:
    """The runs of one comparison."""

    def __init__(self, execute: Execute, settings: FieldSettings, load: Backlog, say: Callable[[str], None]) -> None:
        self._execute = execute
        self._settings = settings
        self._load = load
        self._say = say

    async def calibrate(self) -> Calibration:
        """Works off a backlog at each window, there and back; rate and SLO scale follow.

        Raises:
            DemoBroken: The engine does not serve enough of it.
        """
        settings = self._settings
        points = []
        for number in range(settings.capacity_rounds):
            for cap in settings.capacity_caps if number % 2 == 0 else reversed(settings.capacity_caps):
                points.append(await self.capacity_at(cap))
                self._say(f"window {cap}: {points[-1].throughput_rps:.1f} requests/s, TPOT {points[-1].tpot_ms:.1f} ms")
        slos = [arrival.slo for arrival in self._load.backlog()]
        return operating_point(smoothed(points), load=settings.load, headroom=settings.tpot_headroom, slos=slos)

    async def capacity_at(self, cap: int) -> CapPoint:
        """Throughput and TPOT of a backlog with one window.

        Raises:
            DemoBroken: The engine does not serve enough of it.
        """
        backlog = self._load.backlog()
        span = Span(warmup_s=0.0, duration_s=1.0, drain_s=BACKLOG_DRAIN_S)
        run = await self._execute(Variant(name=f"capacity-{cap}", n_run=cap), backlog, span)
        ends = [r.at_s + r.total_ms / 1000.0 for r in run.results if r.outcome == "completed"]
        tpots = [r.tpot_ms for r in run.results if r.tpot_ms >= 0]
        if len(ends) < len(backlog) // 2 or not tpots:
            raise DemoBroken(f"only {len(ends)} of {len(backlog)} requests completed while measuring capacity at a window of {cap}")
        return CapPoint(n_run=cap, throughput_rps=middle_rps(ends), tpot_ms=median(tpots))

    async def tune(self, arrivals: Sequence[Arrival], choices: Sequence[Overdue]) -> tuple[list[SweepPoint], dict[str, int]]:
        """Tries every window under FCFS with each treatment of late requests.

        Returns:
            All points, and the best window by treatment; of equals the smaller one.
        """
        span = self._settings.sweep_span
        points = []
        for overdue in choices:
            for cap in self._settings.sweep_caps:
                variant = Variant(name=f"sweep-{overdue}-{cap}", n_run=cap, overdue=overdue)
                run = (await self.tries(variant, arrivals, span, repeats=1))[-1]
                points.append(
                    SweepPoint(n_run=cap, overdue=overdue, goodput_rps=run.score.goodput_rps, goodput_rate=run.score.goodput_rate)
                )
                self._say(f"FCFS, window {cap}, {overdue}: {run.score.goodput_rps:.2f} good/s")
        return points, best_windows(points)

    async def tries(
        self, variant: Variant, arrivals: Sequence[Arrival], span: Span, *, agents: bool = False, repeats: int | None = None
    ) -> list[LiveRun]:
        """A run, repeated while the machine's noise has spoilt it, at most `repeats` times (the settings' `retries`).

        Returns:
            All that were made: every one but the last is spoilt, and the last one is where `noisy` says so.
        """

        def spoilt(run: LiveRun) -> bool:
            if run.noisy:
                self._say(rejected(variant.name, run.stood_still_s))
            return run.noisy

        most = self._settings.retries if repeats is None else repeats
        return await until_quiet(lambda: self._execute(variant, arrivals, span, agents=agents), spoilt, most)


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
