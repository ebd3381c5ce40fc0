"""The live ablation's processes: vLLM for all of it, a gateway with its agents for every run."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hmas.controller.runtime.clock import SystemClock
from hmas.demo.calibration import Calibration, Variant
from hmas.demo.live import LiveRun, live_run
from hmas.demo.progress import Reporter
from hmas.demo.settings import Span
from hmas.demo.site import make_site
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.process import Progress
from hmas.loadgen.workload import Arrival
from hmas_lab.agents.asked import Pool
from hmas_lab.agents.live import ARMS, Ablation, PromptLoad, cast_of
from hmas_lab.agents.requests import Truth
from hmas_lab.agents.teller import write_truths
from hmas_lab.blocks import STARTING, all_on_vllm
from hmas_lab.demo_vllm.cli import PACE
from hmas_lab.demo_vllm.runs import FieldRuns
from hmas_lab.demo_vllm.settings import FieldSettings
from hmas_lab.vllm_engine import VllmServer

MODEL = "tiny"
CALIBRATING = "measuring capacity"
BETWEEN_S = 14.0
"""What a run takes beside its arrivals: gateway, agents and client start, the last answers come."""


def seconds_of(settings: FieldSettings) -> list[tuple[str, float]]:
    """The phases of an ablation and about how long each takes."""
    lengths = [(STARTING, 60.0), (CALIBRATING, 25.0 * settings.capacity_rounds * len(settings.capacity_caps))]
    block_s = (settings.run_span.duration_s + BETWEEN_S) * (len(ARMS) + 1)
    return [*lengths, *((f"block {number + 1}", block_s) for number in range(settings.blocks))]


def ablate_on_vllm(
    settings: FieldSettings, server: VllmServer, pool: Pool, folder: Path, on_block: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Starts vLLM and makes all runs.

    Args:
        settings: What to do.
        server: How vLLM is started.
        pool: The prompts.
        folder: Logs, plans and raw results lie here.
        on_block: Given the document after every block, so that a long ablation which is broken off leaves what it has.

    Raises:
        DemoBroken: Something did not come up.
    """
    clock = SystemClock()
    reporter = Reporter(clock, seconds_of(settings))
    load = PromptLoad(pool, load_mixture()[0], settings, MODEL)
    site = make_site(folder, load.tenants(), kind="vllm", model=MODEL)
    truths = folder / "truths.json"
    arms: dict[str, str] = {}
    scale: list[float] = [1.0]

    async def execute(variant: Variant, arrivals: Sequence[Arrival], span: Span, *, agents: bool = False) -> LiveRun:
        def on_progress(progress: Progress) -> None:
            reporter.tick(f"{variant.name}: {progress.sent}/{len(arrivals)} sent, {progress.good} good of {progress.ended} ended")

        config: Mapping[str, Any] = {"agents": PACE, "slo": {"scale": scale[0]}} if agents else {}
        cast = cast_of(arms[variant.name], str(truths)) if agents else None
        return await live_run(site, variant, arrivals, span, cast=cast, config=config, clock=clock, on_progress=on_progress)

    runs = FieldRuns(execute, settings, load, reporter.say)

    def write(known: Mapping[str, Truth]) -> None:
        write_truths(truths, known)

    study = Ablation(settings, runs, load, write=write, choose=arms.__setitem__, say=reporter.say, stage=reporter.phase)

    def aim(ground: Calibration) -> None:
        scale[0] = ground.slo_scale

    return asyncio.run(
        all_on_vllm(
            study,
            server,
            site,
            reporter,
            model=MODEL,
            blocks=settings.blocks,
            about={"prompts": {task.value: len(found) for task, found in pool.prompts.items()}},
            on_ground=aim,
            on_block=on_block,
        )
    )
