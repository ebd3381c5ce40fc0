"""One vLLM for a whole comparison under the shared load: its site, its runs, its clock."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.runtime.clock import SystemClock
from hmas.demo.field_runs import FieldRuns, on_site
from hmas.demo.field_settings import FieldSettings
from hmas.demo.progress import Reporter
from hmas.demo.site import make_site
from hmas.demo.vllm_engine import VllmServer
from hmas.lab.blocks import STARTING, Blocks, all_on_vllm
from hmas.lab.cores import beside
from hmas.lab.dataset import load_mixture
from hmas.lab.policies.tenants import TENANTS, SharedLoad
from hmas.lab.traces import Trace

MODEL = "tiny"
BETWEEN_S = 9.0
"""What a run takes beside its arrivals: gateway and client start, the last answers come."""
CAPACITY_S = 20.0
"""One measurement of capacity."""
Make = Callable[[FieldRuns, SharedLoad, Reporter], Blocks[Any]]


def seconds_of(field: FieldSettings, stages: Sequence[str], *, treatments: int, runs: int) -> list[tuple[str, float]]:
    """The phases of a comparison and about how long each takes.

    Args:
        field: Its runs.
        stages: Names of calibration and tuning.
        treatments: Of late requests, for each of which all windows are tried.
        runs: In each block.
    """
    sweep_s = field.sweep_span.duration_s + BETWEEN_S
    lengths = [60.0, CAPACITY_S * field.capacity_rounds * len(field.capacity_caps), treatments * sweep_s * len(field.sweep_caps)]
    block_s = CAPACITY_S + (field.run_span.duration_s + BETWEEN_S) * runs
    return [*zip((STARTING, *stages), lengths, strict=True), *((f"block {number + 1}", block_s) for number in range(field.blocks))]


def compare_on_vllm(
    make: Make,
    field: FieldSettings,
    server: VllmServer,
    trace: Trace,
    folder: Path,
    *,
    phases: Sequence[tuple[str, float]],
    on_block: Callable[[dict[str, Any]], None],
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Starts vLLM and makes the whole comparison.

    Args:
        make: Makes the comparison of what it needs.
        field: Load, bursts, lengths, blocks and windows.
        server: How vLLM is started.
        trace: Where requests come from.
        folder: Logs, plans and raw results lie here.
        phases: What is done and about how long it takes, seconds.
        on_block: Given the document after every block, so that a long comparison which is broken off leaves what it has.
        config: Further sections of the configuration of gateways with agents.

    Raises:
        DemoBroken: Something did not come up.
        TraceError: The trace cannot be used, or is too short.
    """
    mixture, prompts = load_mixture()
    load = SharedLoad(trace, field, mixture, prompts)
    clock = SystemClock()
    reporter = Reporter(clock, list(phases))
    site = make_site(folder, TENANTS, kind="vllm", model=MODEL)
    runs = FieldRuns(on_site(site, clock=clock, reporter=reporter, config=config), field, load, reporter.say)
    study = make(runs, load, reporter)
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
                    blocks=field.blocks,
                    about={"trace": trace.source},
                    on_ground=lambda _ground: None,
                    on_block=on_block,
                )
            )
    finally:
        reporter.done()
