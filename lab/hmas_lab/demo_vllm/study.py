"""The comparison on a real vLLM: capacity, SLOs and the baselines' windows are measured on the engine itself, then blocks of runs."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hmas.controller.runtime.clock import SystemClock
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.demo.calibration import Calibration, SweepPoint, Variant
from hmas.demo.live import LiveRun
from hmas.demo.outcome import DEFAULT, OURS
from hmas.demo.progress import Reporter
from hmas.demo.settings import Span
from hmas.demo.site import make_site
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.traces import Trace
from hmas.loadgen.workload import Arrival
from hmas_lab.cores import beside
from hmas_lab.demo_vllm.load import FieldLoad
from hmas_lab.demo_vllm.runs import FieldRuns, on_site
from hmas_lab.demo_vllm.settings import FieldSettings
from hmas_lab.vllm_engine import VllmServer, running_vllm

MODEL = "tiny"
BASELINE, BASELINE_SHED = "fcfs-best-cap", "fcfs-best-cap-shed"
NAMES = (DEFAULT, BASELINE, BASELINE_SHED, OURS)
STARTING, CALIBRATING, SWEEPING = "starting vLLM", "measuring capacity", "tuning the baselines"


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
        self._load = FieldLoad(trace, settings, mixture, prompts)
        self._clock = SystemClock()
        tenants = sorted({tenant for kind in mixture.kinds.values() for tenant in kind.tenants})
        self._site = make_site(out, tenants, kind="vllm", model=MODEL)
        span = settings.run_span
        one_s = span.duration_s + span.warmup_s + 6.0
        sweeping_s = 2 * len(settings.sweep_caps) * (settings.sweep_span.duration_s + span.warmup_s + 3.0)
        phases = [(STARTING, 60.0), (CALIBRATING, 20.0 * settings.capacity_rounds * len(settings.capacity_caps)), (SWEEPING, sweeping_s)]
        self._reporter = Reporter(self._clock, [*phases, *((f"block {i + 1}", 4 * one_s) for i in range(settings.blocks))])
        execute = on_site(self._site, clock=self._clock, reporter=self._reporter, config=config)
        self._runs = FieldRuns(execute, settings, self._load, self._reporter.say)

    def run(self) -> FieldResult:
        """Runs it all.

        Raises:
            DemoBroken: Something did not come up.
        """
        # The worker has its cores to itself, else whoever shares one with it decides how fast a run's engine is.
        with beside(self._server.cores):
            return asyncio.run(self._run())

    async def _run(self) -> FieldResult:
        self._reporter.phase(STARTING)
        async with running_vllm(self._server, self._site.folder, MODEL) as url:
            self._site.engines["vllm-1"] = url
            self._reporter.phase(CALIBRATING)
            calibration = await self._runs.calibrate()
            self._reporter.phase(SWEEPING)
            span = self._settings.sweep_span
            # A piece of the trace that no block uses.
            points, best = await self._runs.tune(self._piece(0, calibration, span), ("keep", "shed"))
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

    async def _block(self, number: int, calibration: Calibration, best: Mapping[str, int]) -> Block:
        span = self._settings.run_span
        arrivals = self._piece(number + 1, calibration, span)
        variants = {
            DEFAULT: Variant(name=DEFAULT),
            BASELINE: Variant(name=BASELINE, n_run=best["keep"]),
            BASELINE_SHED: Variant(name=BASELINE_SHED, n_run=best["shed"], overdue="shed"),
            OURS: Variant(name=OURS, policy=DEFAULT_POLICY, overdue="demote"),
        }
        runs: dict[str, LiveRun] = {}
        rejected = 0
        for name in NAMES if number % 2 == 0 else reversed(NAMES):
            folder_name = f"block-{number + 1}-{name}"
            variant = msgspec.structs.replace(variants[name], name=folder_name)
            made = await self._runs.tries(variant, arrivals, span, agents=name == OURS)
            rejected += sum(run.noisy for run in made)
            runs[name] = made[-1]
            s = made[-1].score
            self._reporter.say(
                f"{folder_name}: {s.goodput_rps:.2f} good/s ({s.good} of {s.submitted}), TTFT p95 {s.ttft_ms.p95:.0f} ms, "
                f"TPOT p95 {s.tpot_ms.p95:.1f} ms"
            )
        return Block(number=number + 1, arrivals=len(arrivals), runs=runs, rejected=rejected)

    def _piece(self, number: int, calibration: Calibration, span: Span) -> list[Arrival]:
        return self._load.piece(number, mean_rps=calibration.mean_rps, duration_s=span.duration_s, slo_scale=calibration.slo_scale)
