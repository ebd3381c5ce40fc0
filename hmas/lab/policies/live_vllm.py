"""The live comparison's processes: vLLM for all of it, a gateway of its own for every run."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller.runtime.clock import SystemClock
from hmas.demo.field_runs import FieldRuns, on_site
from hmas.demo.progress import Reporter
from hmas.demo.site import make_site
from hmas.demo.vllm_engine import VllmServer
from hmas.lab.blocks import STARTING, all_on_vllm
from hmas.lab.cores import beside
from hmas.lab.dataset import load_mixture
from hmas.lab.policies.live import STAGES, PolicyRuns
from hmas.lab.policies.settings import LiveSettings
from hmas.lab.policies.tenants import TENANTS, SharedLoad
from hmas.lab.traces import Trace

MODEL = "tiny"
BETWEEN_S = 9.0
"""What a run takes beside its arrivals: gateway and client start, the last answers come."""


def seconds_of(settings: LiveSettings) -> list[tuple[str, float]]:
    """The phases of a comparison and about how long each takes."""
    field = settings.field
    capacity_s = 20.0
    run_s = field.run_span.duration_s + BETWEEN_S
    sweep_s = field.sweep_span.duration_s + BETWEEN_S
    lengths = [60.0, capacity_s * field.capacity_rounds * len(field.capacity_caps), sweep_s * len(field.sweep_caps)]
    block_s = capacity_s + run_s * (len(settings.policies) + 1)
    return [*zip((STARTING, *STAGES), lengths, strict=True), *((f"block {number + 1}", block_s) for number in range(field.blocks))]


def compare_on_vllm(
    settings: LiveSettings, server: VllmServer, trace: Trace, folder: Path, on_block: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Starts vLLM and makes the whole comparison.

    Args:
        settings: What to do.
        server: How vLLM is started.
        trace: Where requests come from.
        folder: Logs, plans and raw results lie here.
        on_block: Given the document after every block, so that a long comparison which is broken off leaves what it has.

    Raises:
        DemoBroken: Something did not come up.
        TraceError: The trace cannot be used, or is too short.
    """
    mixture, prompts = load_mixture()
    load = SharedLoad(trace, settings.field, mixture, prompts)
    clock = SystemClock()
    reporter = Reporter(clock, seconds_of(settings))
    site = make_site(folder, TENANTS, kind="vllm", model=MODEL)
    runs = FieldRuns(on_site(site, clock=clock, reporter=reporter), settings.field, load, reporter.say)
    study = PolicyRuns(settings, runs, load, say=reporter.say, stage=reporter.phase)

    try:
        # The worker has its cores to itself: what shares one with it makes every step of that run slower, and of the next one not.
        with beside(server.cores):
            return asyncio.run(
                all_on_vllm(
                    study,
                    server,
                    site,
                    reporter,
                    model=MODEL,
                    blocks=settings.field.blocks,
                    about={"trace": trace.source},
                    on_ground=lambda _ground: None,
                    on_block=on_block,
                )
            )
    finally:
        reporter.done()
