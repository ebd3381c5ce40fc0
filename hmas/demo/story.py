"""The sequence of the demo: calibrate, tune the baselines, make the four runs, compare."""

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

from hmas.controller.core.errors import HmasError
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.demo.calibration import SWEEP_CAPS, Calibration, Runner, SweepPoint, Task, TaskResult, calibrate, sweep
from hmas.demo.live import LiveRun, live_run
from hmas.demo.load import TENANTS, demo_arrivals
from hmas.demo.outcome import DEFAULT, OURS, DemoResult
from hmas.demo.progress import Reporter
from hmas.demo.settings import DemoSettings, Span
from hmas.demo.site import DemoBroken, Site, make_site, running_engines
from hmas.demo.virtual import Variant
from hmas.loadgen.dataset import Mixture, PromptData, load_mixture
from hmas.loadgen.process import Progress
from hmas.loadgen.workload import Arrival

PREPARE, NEIGHBOURS, REPORT = "calibrating and tuning the baselines", "checking the neighbouring windows", "writing the report"
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


def run_demo(settings: DemoSettings, out: Path, *, rounds: int = 1, neighbours: bool = False) -> list[DemoResult]:
    """Runs the whole demo; logs and raw results of the last round are written to `out`.

    Args:
        settings: The operating point; round i has the seed `settings.seed + i`.
        out: Folder for the files of the processes.
        rounds: How often the four runs are made; every second time in reverse order, so that a drift of the machine favours none.
        neighbours: Also run the windows next to the baselines' simulated best, live; a better one replaces the baseline's.

    Raises:
        DemoBroken: A process did not start.
    """
    return asyncio.run(_demo(settings, out, rounds, neighbours=neighbours))


async def _demo(settings: DemoSettings, out: Path, rounds: int, *, neighbours: bool) -> list[DemoResult]:
    mixture, prompts = load_mixture()
    site = make_site(out, TENANTS)
    reporter = _reporter(settings, neighbours=neighbours)
    results = []
    try:
        reporter.phase(PREPARE)
        async with running_engines(site, settings):
            for number in range(rounds):
                if number:
                    reporter = _reporter(settings, neighbours=neighbours)
                    reporter.phase(PREPARE)
                seeded = msgspec.structs.replace(settings, seed=settings.seed + number)
                calibration, arrivals, points, best = await asyncio.to_thread(_prepare, seeded, mixture, prompts)
                _tell_plan(reporter, seeded, calibration, arrivals, best)
                stage = _Stage(site, arrivals, seeded.span, reporter)
                runs, checked = await stage.play(_variants(best), backwards=number % 2 == 1, neighbours=neighbours)
                reporter.phase(REPORT)
                results.append(
                    DemoResult(
                        settings=seeded,
                        calibration=calibration,
                        sweep=points,
                        runs=runs,
                        neighbours=checked,
                        repeated=stage.repeated,
                        elapsed_s=reporter.elapsed_s,
                    )
                )
    finally:
        reporter.done()
    return results


class _Stage:
    """The common setting of one round's runs: the same processes and the same arrivals."""

    def __init__(self, site: Site, arrivals: Sequence[Arrival], span: Span, reporter: Reporter) -> None:
        self._site = site
        self._arrivals = arrivals
        self._span = span
        self._reporter = reporter
        self.repeated: list[str] = []

    async def play(self, variants: Sequence[Variant], *, backwards: bool, neighbours: bool) -> tuple[list[LiveRun], list[LiveRun]]:
        """Makes the runs; returns them in the order of `variants`, and the runs of neighbouring windows."""
        runs = []
        for variant in reversed(variants) if backwards else variants:
            self._reporter.phase(variant.name)
            runs.append(await self._quiet_run(variant))
        runs.sort(key=lambda run: NAMES.index(run.variant.name))
        if not neighbours:
            return runs, []
        self._reporter.phase(NEIGHBOURS)
        checked = [await self._run(variant) for run in runs for variant in _next_to(run.variant)]
        return [_better(run, checked) for run in runs], checked

    async def _quiet_run(self, variant: Variant) -> LiveRun:
        """Makes a run, and repeats it once if the machine stalled, because the times then measure the machine's other work."""
        run = await self._run(variant)
        if not run.noisy or run.broken:
            return run
        self.repeated.append(variant.name)
        return await self._run(variant)

    async def _run(self, variant: Variant) -> LiveRun:
        ours = variant.name == OURS

        def on_progress(progress: Progress) -> None:
            share = f"{progress.good / progress.ended:.2f}" if progress.ended else "-"
            self._reporter.tick(f"{progress.sent}/{len(self._arrivals)} sent, {progress.ended} ended, {share} of them good")

        try:
            run = await live_run(
                self._site,
                variant,
                self._arrivals,
                self._span,
                agents=ours,
                config={"agents": dict(AGENT_PACE)} if ours else {},
                clock=SystemClock(),
                on_progress=on_progress,
            )
        except HmasError as error:
            raise DemoBroken(f"{variant.name}: {error}") from error
        _tell_run(self._reporter, run)
        return run


def _next_to(variant: Variant) -> list[Variant]:
    """The variant with the next smaller and the next larger window of the sweep; empty for runs without a static window."""
    if variant.n_run not in SWEEP_CAPS:
        return []
    place = SWEEP_CAPS.index(variant.n_run)
    windows = [*SWEEP_CAPS[max(0, place - 1) : place], *SWEEP_CAPS[place + 1 : place + 2]]
    return [msgspec.structs.replace(variant, name=f"{variant.name}-{n_run}", n_run=n_run) for n_run in windows]


def _better(run: LiveRun, checked: Sequence[LiveRun]) -> LiveRun:
    """The run, or a neighbour with higher goodput, under the run's name."""
    mine = [run, *(other for other in checked if other.variant.name.rpartition("-")[0] == run.variant.name)]
    best = max(mine, key=lambda other: other.score.goodput_rps)
    return msgspec.structs.replace(best, variant=msgspec.structs.replace(best.variant, name=run.variant.name))


def _reporter(settings: DemoSettings, *, neighbours: bool) -> Reporter:
    run_s = 1.35 * settings.duration_s + 2.0
    phases = [(PREPARE, 10.0), *((name, run_s + (3.0 if name == OURS else 0.0)) for name in NAMES), (REPORT, 1.0)]
    return Reporter(SystemClock(), [*phases, (NEIGHBOURS, 4 * run_s)] if neighbours else phases)


def _variants(best: Mapping[str, int]) -> list[Variant]:
    return [
        Variant(name=DEFAULT),
        Variant(name=NAMES[1], n_run=best["keep"]),
        Variant(name=NAMES[2], n_run=best["shed"], overdue="shed"),
        Variant(name=OURS, policy=DEFAULT_POLICY, overdue="demote"),
    ]


def _prepare(
    settings: DemoSettings, mixture: Mixture, prompts: PromptData
) -> tuple[Calibration, list[Arrival], list[SweepPoint], dict[str, int]]:
    with worker_pool() as run:
        calibration = calibrate(settings, mixture, prompts, run)
        workload = settings.workload(mean_rps=calibration.mean_rps, slo_scale=calibration.slo_scale)
        arrivals = demo_arrivals(workload, mixture, prompts)
        return calibration, arrivals, *sweep(arrivals, settings, run)


@contextmanager
def worker_pool() -> Iterator[Runner]:
    """Runs virtual-time tasks on all cores."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=max(1, os.cpu_count() or 1), mp_context=context) as pool:

        def run(work: Callable[[Task], TaskResult], tasks: Iterable[Task]) -> Iterable[TaskResult]:
            return pool.map(work, tasks)

        yield run


def _tell_plan(
    reporter: Reporter, settings: DemoSettings, calibration: Calibration, arrivals: Sequence[Arrival], best: Mapping[str, int]
) -> None:
    reporter.say(
        f"seed {settings.seed}: {len(arrivals)} arrivals at {calibration.mean_rps:.1f}/s, bursty, {settings.load:.0%} of capacity; "
        f"SLO scale {calibration.slo_scale:g}; best windows: {best['keep']}, with shedding {best['shed']}"
    )


def _tell_run(reporter: Reporter, run: LiveRun) -> None:
    s = run.score
    noise = f", NOISY: the machine stood still for {run.stood_still_s:.2f} s" if run.noisy else ""
    reporter.say(
        f"{run.variant.name}: {s.goodput_rps:.2f} good/s ({s.good} of {s.submitted}), TTFT p95 {s.ttft_ms.p95:.0f} ms, "
        f"TPOT p95 {s.tpot_ms.p95:.1f} ms, lost {run.summary.outcomes['lost']}{noise}"
    )
    for text in run.broken:
        reporter.say(f"BROKEN: {text}")
