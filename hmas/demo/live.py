"""One live run: a new gateway, the load generator's process, a watcher, and the check of the counts afterwards."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.messages import ACTIONS, DECISIONS, ControlAction, MetaDecision
from hmas.controller.runtime.clock import Clock
from hmas.demo.controls import Controls, controls_of
from hmas.demo.settings import Span
from hmas.demo.site import EVERYBODY, Cast, GatewayAddress, Site, reset_engines, running_gateway
from hmas.demo.virtual import Variant
from hmas.demo.watching import Decision, Sample, Watcher, broken_sums, decisions_of
from hmas.loadgen.process import LoadSpec, Progress, run_process, write_plan
from hmas.loadgen.results import Result, RunSummary, read_results
from hmas.loadgen.score import Score, score
from hmas.loadgen.workload import Arrival

KEPT = 2000
STATUS_LIMIT_S = 1.0
OnProgress = Callable[[Progress], None]


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """All results of one run.

    Attributes:
        verdicts: Meta's decisions, including those that changed nothing.
        actions: Number of statera's control actions. `controls`: their summary over the scored span, None if there was none.
        slowest_status_s: The longest time that the gateway took to answer a status call.
        broken: Violations as text; empty in a valid run.
    """

    variant: Variant
    score: Score
    summary: RunSummary
    results: list[Result]
    samples: list[Sample]
    decisions: list[Decision]
    verdicts: list[Decision]
    actions: int
    status: dict[str, Any]
    broken: list[str]
    slowest_status_s: float = 0.0
    controls: Controls | None = None

    @property
    def stood_still_s(self) -> float:
        """The longest known time in which the client's or the gateway's process did not run."""
        return max(self.summary.max_gap_s, self.slowest_status_s)

    @property
    def noisy(self) -> bool:
        """Whether other work on the machine disturbed the run, so that its latencies are unreliable."""
        return self.summary.noisy or self.slowest_status_s > STATUS_LIMIT_S


async def live_run(
    site: Site,
    variant: Variant,
    arrivals: Sequence[Arrival],
    span: Span,
    *,
    agents: bool,
    config: Mapping[str, Any],
    clock: Clock,
    on_progress: OnProgress,
    cast: Cast = EVERYBODY,
) -> LiveRun:
    """Runs the arrivals through a gateway of this variant; with agents, it starts those of the cast.

    Raises:
        DemoBroken: A process did not start.
        TraceError: The load generator failed.
    """
    troubles = len(site.troubles)
    await reset_engines(site)
    async with running_gateway(site, variant, agents=agents, config=config, cast=cast) as address:
        load = LoadSpec(
            url=address.url,
            model=site.model,
            api_keys=site.keys,
            length_channel=site.kind,
            drain_s=span.drain_s,
            declares=cast.declares,
        )
        started_s = clock.now_s()
        watcher = Watcher(address.admin_url, started_s, clock.now_s)
        watching = asyncio.create_task(watcher.run())
        try:
            results, summary = await _send(site, variant, arrivals, load, on_progress)
            status, events = await watcher.finish(watching)
        finally:
            watching.cancel()
        start_s = summary.started_s
        decisions, actions = await _from_the_bus(address)
    _keep(site.folder / variant.name, decisions, actions)
    figures = score(results, warmup_s=span.warmup_s, arrivals_end_s=span.duration_s, run_end_s=summary.elapsed_s)
    broken = [*site.troubles[troubles:], *_disagreements(results, status, watcher.failures, len(arrivals))]
    return LiveRun(
        variant=variant,
        score=figures,
        summary=summary,
        results=results,
        samples=[msgspec.structs.replace(s, at_s=round(s.at_s + started_s - start_s, 2)) for s in watcher.samples],
        decisions=decisions_of(events, start_s),
        verdicts=[_verdict(decision, start_s) for decision in decisions],
        actions=len(actions),
        controls=controls_of(actions, from_s=start_s + span.warmup_s, to_s=start_s + span.duration_s),
        status=dict(status),
        slowest_status_s=watcher.slowest_s,
        broken=broken,
    )


async def _send(
    site: Site, variant: Variant, arrivals: Sequence[Arrival], load: LoadSpec, on_progress: OnProgress
) -> tuple[list[Result], RunSummary]:
    """Runs the load generator in its own process and reports progress."""
    folder = site.folder / variant.name
    plan, results = folder / "plan.jsonl", folder / "results.jsonl"
    write_plan(plan, arrivals, load, results)
    with (folder / "loadgen.log").open("wb") as errors:
        summary = await run_process(plan, on_progress, errors.fileno())
    return read_results(results), summary


async def _from_the_bus(address: GatewayAddress) -> tuple[list[MetaDecision], list[ControlAction]]:
    """Reads meta's decisions and statera's actions from the bus."""
    if not address.bus_url:
        return [], []
    bus = RedisBus(address.bus_url)
    await bus.start()
    try:
        decisions = await bus.latest(DECISIONS, KEPT)
        actions = await bus.latest(ACTIONS, KEPT)
    finally:
        await bus.close()
    return [m for m in decisions if isinstance(m, MetaDecision)], [m for m in actions if isinstance(m, ControlAction)]


def _keep(folder: Path, decisions: Sequence[MetaDecision], actions: Sequence[ControlAction]) -> None:
    """Writes the agents' messages next to the run's plan and results, one per line."""
    for name, messages in (("decisions", decisions), ("actions", actions)):
        if messages:
            (folder / f"{name}.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(messages))


def _verdict(decision: MetaDecision, start_s: float) -> Decision:
    return Decision(
        at_s=round(decision.sent_s - start_s, 2),
        source=f"meta/{decision.source}",
        kind="bypass" if decision.bypass else "policy",
        subject="queue",
        before=decision.previous,
        after=decision.policy,
        reason=decision.reason,
    )


def _disagreements(results: Sequence[Result], status: Mapping[str, Any], failures: Sequence[str], submitted: int) -> list[str]:
    found = [f"the gateway did not answer its operators: {text}" for text in failures[:3]]
    lost = [r for r in results if r.outcome == "lost"]
    if lost:
        found.append(f"{len(lost)} requests were lost, the first: number {lost[0].index}, {lost[0].detail}")
    failed = [r for r in results if r.outcome == "failed"]
    if failed:
        found.append(f"{len(failed)} requests failed, the first: number {failed[0].index}, {failed[0].detail}")
    if len(results) != submitted:
        found.append(f"{submitted} requests were planned, {len(results)} have an outcome")
    sums = broken_sums(status, submitted)
    if sums:
        found.append(sums)
    return found
