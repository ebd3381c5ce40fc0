"""One live run: a new gateway, the load generator's process, samples through the operators' API, and the check of the counts afterwards."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hmas.controller.admin.client import AdminClient
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.core.errors import AdminError
from hmas.controller.core.messages import ACTIONS, DECISIONS, ControlAction, MetaDecision
from hmas.controller.observability.decision_log import DecisionLog
from hmas.controller.runtime.clock import Clock
from hmas.demo.calibration import Variant
from hmas.demo.settings import Span
from hmas.demo.site import Cast, GatewayAddress, Site, reset_engines, running_gateway
from hmas.loadgen.process import LoadSpec, Progress, run_process, write_plan
from hmas.loadgen.results import Result, RunSummary, read_results
from hmas.loadgen.score import Score, score
from hmas.loadgen.workload import Arrival

KEPT = 2000
STATUS_LIMIT_S = 1.0
EVERY_S = 0.5
EVENTS = 1000
ANSWER_S = 15.0
OnProgress = Callable[[Progress], None]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's state at one moment; `at_s` from the run's start. Sums are over the instances."""

    at_s: float
    queued: int
    in_flight: int
    n_run: int
    token_budget: int
    policy: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of an agent; `at_s` from the run's start."""

    at_s: float
    source: str
    kind: str
    subject: str
    before: str
    after: str
    reason: str


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """All results of one run.

    Attributes:
        decisions: Decisions of agents that the gateway applied. `verdicts`: meta's decisions, including those that changed nothing.
        actions: Statera's control actions.
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
    actions: list[ControlAction]
    status: dict[str, Any]
    broken: list[str]
    slowest_status_s: float = 0.0

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
    cast: Cast | None,
    config: Mapping[str, Any],
    clock: Clock,
    on_progress: OnProgress,
) -> LiveRun:
    """Runs the arrivals through a gateway of this variant, with the agents of the cast if there is one.

    Raises:
        DemoBroken: A process did not start.
        TraceError: The load generator failed.
    """
    troubles = len(site.troubles)
    folder = site.folder / variant.name
    await reset_engines(site)
    async with running_gateway(site, variant, cast=cast, config=config) as address:
        load = LoadSpec(url=address.url, model=site.model, api_keys=site.keys, length_channel=site.kind, drain_s=span.drain_s)
        watcher = _Watcher(AdminClient(address.admin_url, token_file=folder / ADMIN_TOKEN_FILE, timeout_s=ANSWER_S), clock)
        watching = asyncio.create_task(watcher.run())
        try:
            write_plan(folder / "plan.jsonl", arrivals, load, folder / "results.jsonl")
            with (folder / "loadgen.log").open("wb") as errors:
                summary = await run_process(folder / "plan.jsonl", on_progress, errors.fileno())
            results = read_results(folder / "results.jsonl")
            status, events = await watcher.finish(watching)
        finally:
            watching.cancel()
        decisions, actions = await _from_the_bus(address, folder)
    start_s = summary.started_s
    return LiveRun(
        variant=variant,
        score=score(results, warmup_s=span.warmup_s, arrivals_end_s=span.duration_s, run_end_s=summary.elapsed_s),
        summary=summary,
        results=results,
        samples=[sample_of(status, at_s - start_s) for at_s, status in watcher.seen],
        decisions=decisions_of(events, start_s),
        verdicts=verdicts_of(decisions, start_s),
        actions=actions,
        status=dict(status),
        slowest_status_s=watcher.slowest_s,
        broken=[*site.troubles[troubles:], *_disagreements(results, status, watcher.failures, len(arrivals))],
    )


class _Watcher:
    """Asks one gateway for its status every half second.

    Attributes:
        failures: Errors of calls that the gateway did not answer.
        slowest_s: The longest time that an answer took.
    """

    def __init__(self, client: AdminClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.slowest_s = 0.0
        self.seen: list[tuple[float, Mapping[str, Any]]] = []
        self.failures: list[str] = []

    async def run(self) -> None:
        """Asks until cancelled; if the gateway does not answer, records it without raising."""
        while True:
            asked_s = self._clock.now_s()
            try:
                status = await asyncio.to_thread(self._client.status)
                self.seen.append((self._clock.now_s(), status))
            except AdminError as error:
                self.failures.append(str(error))
            self.slowest_s = max(self.slowest_s, self._clock.now_s() - asked_s)
            await asyncio.sleep(EVERY_S)

    async def finish(self, task: "asyncio.Task[None]") -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        """Stops asking; returns the last status and all events.

        Raises:
            AdminError: The gateway does not answer.
        """
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(self._client.status), await asyncio.to_thread(self._client.events, EVENTS)


async def _from_the_bus(address: GatewayAddress, folder: Path) -> tuple[list[MetaDecision], list[ControlAction]]:
    """Reads meta's decisions and statera's actions from the bus, and writes them next to the run's plan and results, one per line."""
    if not address.bus_url:
        return [], []
    bus = RedisBus(address.bus_url)
    await bus.start()
    try:
        decisions = [m for m in await bus.latest(DECISIONS, KEPT) if isinstance(m, MetaDecision)]
        actions = [m for m in await bus.latest(ACTIONS, KEPT) if isinstance(m, ControlAction)]
    finally:
        await bus.close()
    (folder / "decisions.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(decisions))
    (folder / "actions.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(actions))
    return decisions, actions


def sample_of(status: Mapping[str, Any], at_s: float) -> Sample:
    """The figures of a status page that the timeline shows."""
    instances = status["instances"]
    return Sample(
        at_s=round(at_s, 2),
        queued=status["queue"]["queued"],
        in_flight=sum(item["in_flight"] for item in instances),
        n_run=sum(item["n_run"]["value"] or 0 for item in instances),
        token_budget=sum(item["token_budget"]["value"] or 0 for item in instances),
        policy=status["policy"]["name"],
    )


def decisions_of(events: Sequence[Mapping[str, Any]], start_s: float) -> list[Decision]:
    """Agents' decisions, oldest first: events whose source is an agent, not the configuration or an operator."""
    return [
        Decision(
            at_s=round(event["sent_s"] - start_s, 2),
            source=event["source"],
            kind=event["kind"],
            subject=event["subject"],
            before=event.get("before", ""),
            after=event.get("after", ""),
            reason=event.get("reason", ""),
        )
        for event in events
        if event["source"] in {"meta", "statera", "bypass"} and not event["kind"].endswith(".source")
    ]


def verdicts_of(decisions: Sequence[MetaDecision], start_s: float) -> list[Decision]:
    """Meta's decisions, oldest first, each policy with its parameters; without the repeats that are only signs of life."""
    log = DecisionLog()
    for decision in decisions:
        log.record(decision)
    return [
        Decision(
            at_s=round(one["sent_s"] - start_s, 2),
            source=f"meta/{one['source']}",
            kind="bypass" if one["bypass"] else "policy",
            subject="queue",
            before=one["before"] if one["changed"] else one["in_force"],
            after=one["in_force"],
            reason=one["reason"],
        )
        for one in log.newest(KEPT)
    ]


def _disagreements(results: Sequence[Result], status: Mapping[str, Any], failures: Sequence[str], submitted: int) -> list[str]:
    found = [f"the gateway did not answer its operators: {text}" for text in failures[:3]]
    for outcome, words in (("lost", "were lost"), ("failed", "failed")):
        such = [r for r in results if r.outcome == outcome]
        if such:
            found.append(f"{len(such)} requests {words}, the first: number {such[0].index}, {such[0].detail}")
    if len(results) != submitted:
        found.append(f"{submitted} requests were planned, {len(results)} have an outcome")
    sums = broken_sums(status, submitted)
    return [*found, sums] if sums else found


def broken_sums(status: Mapping[str, Any], submitted: int) -> str:
    """Errors in the gateway's own counts after a run, as text; empty if there are none."""
    counts = status["counts"]
    ended = sum(counts["ended"].values())
    if not counts["conserved"] or counts["arrived"] != ended + counts["queued"] + counts["running"]:
        return f"the gateway's sums do not come out: {counts}"
    if counts["arrived"] != submitted:
        return f"the gateway counted {counts['arrived']} arrivals, the client sent {submitted}"
    if counts["queued"] or counts["running"]:
        return f"{counts['queued']} queued and {counts['running']} running requests are left after the run"
    return ""
