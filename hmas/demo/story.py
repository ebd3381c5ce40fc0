"""The sequence of the demo: calibrate, tune the baselines, make the four runs, compare."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hmas.controller.core.errors import HmasError
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.demo.calibration import Calibration, SweepPoint, Variant, calibrate, sweep
from hmas.demo.live import LiveRun, live_run
from hmas.demo.outcome import DEFAULT, OURS, DemoResult
from hmas.demo.progress import Reporter
from hmas.demo.settings import TENANTS, DemoSettings, demo_arrivals
from hmas.demo.site import EVERYBODY, DemoBroken, make_site, running_engines
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.process import Progress
from hmas.loadgen.workload import Arrival
from hmas.planning.backends import on_cores

PREPARE, REPORT = "calibrating and tuning the baselines", "writing the report"
AGENT_PACE: Mapping[str, Any] = MappingProxyType(
    {
        "meta_period_s": 2.0,
        "meta_dwell_s": 5.0,
        "meta_rollback_window_s": 3.0,
        "qos_short_window_s": 2.0,
        "qos_long_window_s": 6.0,
        "statera_period_s": 0.25,
    }
)
"""The agents' time constants, shorter than their defaults because the demo's bursts come every few seconds, not every minute."""
NAMES = (DEFAULT, "fcfs-best-cap", "fcfs-best-cap-shed", OURS)


async def run_demo(settings: DemoSettings, out: Path) -> DemoResult:
    """Runs the whole demo; logs and raw results are written to `out`. A run under which the machine stood still is made once more.

    Raises:
        DemoBroken: A process did not start.
    """
    run_s = 1.35 * settings.duration_s + 2.0
    clock = SystemClock()
    reporter = Reporter(clock, [(PREPARE, 10.0), *((name, run_s + 3.0 * (name == OURS)) for name in NAMES), (REPORT, 1.0)])
    site = make_site(out, TENANTS)
    runs: list[LiveRun] = []
    repeated: list[str] = []

    async def execute(variant: Variant) -> LiveRun:
        def on_progress(progress: Progress) -> None:
            share = f"{progress.good / progress.ended:.2f}" if progress.ended else "-"
            reporter.tick(f"{progress.sent}/{len(arrivals)} sent, {progress.ended} ended, {share} of them good")

        cast, config = (EVERYBODY, {"agents": dict(AGENT_PACE)}) if variant.name == OURS else (None, {})
        try:
            run = await live_run(site, variant, arrivals, settings.span, cast=cast, config=config, clock=clock, on_progress=on_progress)
        except HmasError as error:
            raise DemoBroken(f"{variant.name}: {error}") from error
        _say_run(reporter, run)
        return run

    reporter.phase(PREPARE)
    async with running_engines(site, settings):
        calibration, arrivals, points, best = await asyncio.to_thread(_prepare, settings)
        reporter.say(
            f"seed {settings.seed}: {len(arrivals)} arrivals at {calibration.mean_rps:.1f}/s, bursty, {settings.load:.0%} of capacity; "
            f"SLO scale {calibration.slo_scale:g}; best windows: {best['keep']}, with shedding {best['shed']}"
        )
        for variant in variants(best):
            reporter.phase(variant.name)
            run = await execute(variant)
            if run.noisy and not run.broken:
                repeated.append(variant.name)
                run = await execute(variant)
            runs.append(run)
        reporter.phase(REPORT)
    return DemoResult(settings=settings, calibration=calibration, sweep=points, runs=runs, repeated=repeated, elapsed_s=reporter.elapsed_s)


def variants(best: Mapping[str, int]) -> list[Variant]:
    """The four runs; `best`: the tuned windows by treatment of overdue requests."""
    return [
        Variant(name=DEFAULT),
        Variant(name=NAMES[1], n_run=best["keep"]),
        Variant(name=NAMES[2], n_run=best["shed"], overdue="shed"),
        Variant(name=OURS, policy=DEFAULT_POLICY, overdue="demote"),
    ]


def _prepare(settings: DemoSettings) -> tuple[Calibration, list[Arrival], list[SweepPoint], dict[str, int]]:
    mixture, prompts = load_mixture()
    calibration = calibrate(settings, mixture, prompts, on_cores())
    workload = settings.workload(mean_rps=calibration.mean_rps, slo_scale=calibration.slo_scale)
    arrivals = demo_arrivals(workload, mixture, prompts)
    return calibration, arrivals, *sweep(arrivals, settings, on_cores())


def _say_run(reporter: Reporter, run: LiveRun) -> None:
    s = run.score
    noise = f", NOISY: the machine stood still for {run.stood_still_s:.2f} s" if run.noisy else ""
    reporter.say(
        f"{run.variant.name}: {s.goodput_rps:.2f} good/s ({s.good} of {s.submitted}), TTFT p95 {s.ttft_ms.p95:.0f} ms, "
        f"TPOT p95 {s.tpot_ms.p95:.1f} ms, lost {run.summary.outcomes['lost']}{noise}"
    )
    for text in run.broken:
        reporter.say(f"BROKEN: {text}")
