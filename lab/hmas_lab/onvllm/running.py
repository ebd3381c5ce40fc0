"""One vLLM for a whole comparison: its site, its runs, its clock."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hmas.controller.runtime.clock import SystemClock
from hmas.demo.progress import Reporter
from hmas.demo.site import make_site
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.traces import Trace
from hmas_lab.blocks import STARTING, all_on_vllm
from hmas_lab.cores import beside
from hmas_lab.demo_vllm.runs import FieldRuns, on_site
from hmas_lab.onvllm.comparison import Comparison, Contest
from hmas_lab.onvllm.tenants import TENANTS, SharedLoad
from hmas_lab.vllm_engine import VllmServer

MODEL = "tiny"
BETWEEN_S = 9.0
"""What a run takes beside its arrivals: gateway and client start, the last answers come."""
CAPACITY_S = 20.0
"""One measurement of capacity."""


def seconds_of(contest: Contest) -> list[tuple[str, float]]:
    """The phases of a comparison and about how long each takes."""
    field = contest.field
    sweep_s = len(contest.treatments) * len(field.sweep_caps) * (field.sweep_span.duration_s + BETWEEN_S)
    lengths = [60.0, CAPACITY_S * field.capacity_rounds * len(field.capacity_caps), sweep_s]
    block_s = CAPACITY_S + (field.run_span.duration_s + BETWEEN_S) * len(contest.names)
    phases = zip((STARTING, *contest.stages), lengths, strict=True)
    return [*phases, *((f"block {number + 1}", block_s) for number in range(field.blocks))]


def compare_on_vllm(
    contest: Contest,
    server: VllmServer,
    trace: Trace,
    folder: Path,
    *,
    on_block: Callable[[dict[str, Any]], None],
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Starts vLLM and makes the whole comparison.

    Args:
        contest: What is compared.
        server: How vLLM is started.
        trace: Where requests come from.
        folder: Logs, plans and raw results lie here.
        on_block: Given the document after every block, so that a long comparison which is broken off leaves what it has.
        config: Further sections of the configuration of gateways with agents.

    Raises:
        DemoBroken: Something did not come up.
        TraceError: The trace cannot be used, or is too short.
    """
    field = contest.field
    load = SharedLoad(trace, field, *load_mixture())
    clock = SystemClock()
    reporter = Reporter(clock, seconds_of(contest))
    site = make_site(folder, TENANTS, kind="vllm", model=MODEL)
    runs = FieldRuns(on_site(site, clock=clock, reporter=reporter, config=config), field, load, reporter.say)
    study = Comparison(contest, runs, load, say=reporter.say, stage=reporter.phase)
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
