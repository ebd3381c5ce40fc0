"""The demo from beginning to end: calibrate, tune the baselines, run the four, compare."""

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from controller.core.errors import HmasError
from controller.runtime.clock import SystemClock
from hmas.demo.calibration import Calibration, Runner, SweepPoint, Task, TaskResult, calibrate, sweep
from hmas.demo.live import LiveRun, live_run
from hmas.demo.outcome import DEFAULT, OURS, DemoResult
from hmas.demo.progress import Reporter
from hmas.demo.settings import DemoSettings, Span
from hmas.demo.site import DemoBroken, Site, make_site, running_engines
from hmas.demo.virtual import Variant
from hmas.lab.dataset import Mixture, PromptData, load_mixture
from hmas.lab.loadgen import Progress
from hmas.lab.workload import Arrival, generate

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
"""The agents' clocks, faster than their defaults as the demo's bursts are: they come every few seconds, not every minute."""


NAMES = (DEFAULT, "fcfs-best-cap", "fcfs-best-cap-shed", OURS)


def run_demo(settings: DemoSettings, out: Path, *, rounds: int = 1) -> list[DemoResult]:
    """Runs the whole demo; logs and raw results of the last round lie under `out`.

    Args:
        settings: The operating point; round i has the seed `settings.seed + i`.
        out: Folder for what the processes leave behind.
        rounds: How often the four runs are made; every second time in reverse order, so that a drift of the machine favours nobody.

    Raises:
        DemoBroken: Something did not come up at all.
    """
    return asyncio.run(_demo(settings, out, rounds))


async def _demo(settings: DemoSettings, out: Path, rounds: int) -> list[DemoResult]:
    mixture, prompts = load_mixture()
    tenants = sorted({tenant for kind in mixture.kinds.values() for tenant in kind.tenants})
    site = make_site(out, tenants)
    clock = SystemClock()
    results = []
    reporter = _reporter(settings, clock)
    try:
        reporter.phase(PREPARE)
        async with running_engines(site, settings):
            for number in range(rounds):
                if number:
                    reporter = _reporter(settings, clock)
                    reporter.phase(PREPARE)
                seeded = msgspec.structs.replace(settings, seed=settings.seed + number)
                results.append(await _round(site, seeded, mixture, prompts, reporter, backwards=number % 2 == 1))
    finally:
        reporter.done()
    return results


async def _round(
    site: Site, settings: DemoSettings, mixture: Mixture, prompts: PromptData, reporter: Reporter, *, backwards: bool
) -> DemoResult:
    calibration, arrivals, points, best = await asyncio.to_thread(_prepare, settings, mixture, prompts)
    _tell_plan(reporter, settings, calibration, arrivals, best)
    runs = []
    variants = _variants(best)
    for variant in reversed(variants) if backwards else variants:
        reporter.phase(variant.name)
        try:
            run = await _one(site, variant, arrivals, settings.span, reporter)
        except HmasError as error:
            raise DemoBroken(f"{variant.name}: {error}") from error
        runs.append(run)
        _tell_run(reporter, run)
    reporter.phase(REPORT)
    runs.sort(key=lambda run: NAMES.index(run.variant.name))
    return DemoResult(settings=settings, calibration=calibration, sweep=points, runs=runs, elapsed_s=reporter.elapsed_s)


def _reporter(settings: DemoSettings, clock: SystemClock) -> Reporter:
    expected_s = 1.5 * settings.duration_s + 2.0
    phases = [(PREPARE, 12.0), *((name, expected_s + (4.0 if name == OURS else 0.0)) for name in NAMES), (REPORT, 1.0)]
    return Reporter(clock, phases)


def _variants(best: Mapping[str, int]) -> list[Variant]:
    return [
        Variant(name=DEFAULT),
        Variant(name=NAMES[1], n_run=best["keep"]),
        Variant(name=NAMES[2], n_run=best["shed"], overdue="shed"),
        Variant(name=OURS, policy="edf", overdue="demote"),
    ]


def _prepare(
    settings: DemoSettings, mixture: Mixture, prompts: PromptData
) -> tuple[Calibration, list[Arrival], list[SweepPoint], dict[str, int]]:
    with worker_pool() as run:
        calibration = calibrate(settings, mixture, prompts, run)
        workload = settings.workload(mean_rps=calibration.mean_rps, slo_scale=calibration.slo_scale)
        arrivals = generate(workload, mixture, prompts)
        return calibration, arrivals, *sweep(arrivals, settings, run)


@contextmanager
def worker_pool() -> Iterator[Runner]:
    """Runs virtual-time tasks on all cores."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=max(1, os.cpu_count() or 1), mp_context=context) as pool:

        def run(work: Callable[[Task], TaskResult], tasks: Iterable[Task]) -> Iterable[TaskResult]:
            return pool.map(work, tasks)

        yield run


async def _one(site: Site, variant: Variant, arrivals: Sequence[Arrival], span: Span, reporter: Reporter) -> LiveRun:
    ours = variant.name == OURS

    def on_progress(progress: Progress) -> None:
        share = f"{progress.good / progress.ended:.2f}" if progress.ended else "-"
        reporter.tick(f"{progress.sent}/{len(arrivals)} sent, {progress.ended} ended, {share} of them good")

    return await live_run(
        site,
        variant,
        arrivals,
        span,
        agents=ours,
        config={"agents": dict(AGENT_PACE)} if ours else {},
        clock=SystemClock(),
        on_progress=on_progress,
    )


def _tell_plan(
    reporter: Reporter, settings: DemoSettings, calibration: Calibration, arrivals: Sequence[Arrival], best: Mapping[str, int]
) -> None:
    reporter.say(
        f"seed {settings.seed}: {len(arrivals)} arrivals at {calibration.mean_rps:.1f}/s, bursty, {settings.load:.0%} of capacity; "
        f"SLO scale {calibration.slo_scale:g}; best windows: {best['keep']}, with shedding {best['shed']}"
    )


def _tell_run(reporter: Reporter, run: LiveRun) -> None:
    s = run.score
    noise = f", NOISY: the clock stood still for {run.summary.max_gap_s:.2f} s" if run.summary.noisy else ""
    reporter.say(
        f"{run.variant.name}: {s.goodput_rps:.2f} good/s ({s.good} of {s.submitted}), TTFT p95 {s.ttft_ms.p95:.0f} ms, "
        f"TPOT p95 {s.tpot_ms.p95:.1f} ms, lost {run.summary.outcomes['lost']}{noise}"
    )
    for text in run.broken:
        reporter.say(f"BROKEN: {text}")
