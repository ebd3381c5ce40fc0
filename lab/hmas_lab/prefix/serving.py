"""One arm on one workload, in virtual time."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.core.types import Controls
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec
from hmas.controller.simulation import Arrival, Periodic, RequestRecord, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas_lab.paper.code import fingerprint
from hmas_lab.prefix.arms import ARMS
from hmas_lab.prefix.load import load
from hmas_lab.prefix.routers import InTheCaches, Watched, cached_at_best
from hmas_lab.simulated_serving import QUEUEING

PROFILE = "a100-llama-3-70b-tp4"
INSTANCES = 8
TENANT = "chat"
AWAY_FROM, AWAY_FOR = 0.4, 0.2
"""Of the requests over their rate, a quarter of the time that the chats come: when one instance takes no requests, where a task says so."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        arm: Of `ARMS`.
        workload: Of `WORKLOADS`.
        rate_rps: Arrivals, requests per second.
        load: The same over the capacity of the fleet (`hmas_lab.prefix.study.capacity_rps`); 0 while that is measured.
        away: Whether one instance takes no requests for a twentieth of the time.
    """

    arm: str
    workload: str
    rate_rps: float
    seed: int
    requests: int
    load: float = 0.0
    away: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Attributes:
        code: What the sources were that it was made with.
        figures: `hit` is the share of the prompts' tokens that the engines had cached, `hit_at_best` that of an endless cache shared by
            all; `good` the share of requests that met both targets, `served` that of those with a first token; `busiest` the most
            requests of an instance over the mean. TTFT percentiles are those of all requests: one that was refused has no first token, so
            that `ttft_ms_p95` is infinite (-1 here) where more than 5 % were. TPOT is that of requests that were served.
    """

    task: Task
    code: str
    figures: dict[str, float]


def code() -> str:
    """What the sources are."""
    return fingerprint("prefix")


def run_task(data: bytes) -> bytes:
    """One task, encoded, to its row, encoded: a plain function, so that any process can take it."""
    task = msgspec.json.decode(data, type=Task)
    return msgspec.json.encode(Row(task=task, code=code(), figures=_run(task)))


def _run(task: Task) -> dict[str, float]:
    records, watched, at_best = _serve(task)
    ttfts_ms = sorted(record.ttft_ms if record.ttft_ms >= 0.0 else math.inf for record in records)
    tpots_ms = sorted(record.tpot_ms for record in records if record.tpot_ms >= 0.0)
    sent = list(watched.requests.values())
    return {
        "hit": watched.cached_tokens / max(1, watched.prompt_tokens),
        "hit_at_best": at_best,
        "good": sum(record.slo_met for record in records) / len(records),
        "served": sum(map(math.isfinite, ttfts_ms)) / len(records),
        "ttft_ms_p50": _finite(percentile(ttfts_ms, 50)),
        "ttft_ms_p95": _finite(percentile(ttfts_ms, 95)),
        "tpot_ms_p50": percentile(tpots_ms, 50),
        "busiest": max(sent) * INSTANCES / sum(sent),
    }


def _finite(value: float) -> float:
    """JSON has no infinity."""
    return value if math.isfinite(value) else -1.0


def _serve(task: Task) -> tuple[Sequence[RequestRecord], Watched, float]:
    """The records, what the router saw, and the hit rate of an endless cache."""
    arm = ARMS[task.arm]
    profile = load_profile(PROFILE)
    engines = {f"gpu-{number}": EngineModel(profile) for number in range(INSTANCES)}
    window = task.requests if arm.serving == "at-arrival" else profile.max_num_seqs
    queueing, router = QUEUEING[arm.serving], Watched(arm.make(engines.keys()))
    scheduler = Scheduler(
        settings=queueing.settings,
        instances=[InstanceSpec(name=name, capacity_n_run=window) for name in engines],
        router=router,
        policy=queueing.policy,
    )
    for name in engines:
        scheduler.set_controls(name, Controls(n_run=window))
    traffic = load(task.workload, task.seed, task.requests, task.rate_rps, profile.model)
    seen: set[int] = set()
    tokens = cached = 0

    def told(arrival: Arrival) -> Arrival:
        nonlocal tokens, cached
        tokens += arrival.request.prompt_tokens
        cached += min(arrival.request.prompt_tokens, cached_at_best(seen, arrival.block_hashes) * arrival.hash_tokens)
        view = InTheCaches(engines, arrival.block_hashes, arrival.hash_tokens) if arm.exact else None
        # One tenant: a popular system prompt is not a flood.
        return replace(arrival, request=msgspec.structs.replace(arrival.request, tenant=TENANT, cached=view))

    def arrivals() -> Iterator[Arrival]:
        yield from map(told, traffic.arrivals)

    followups = traffic.followups

    def more(ended: Ended, now_s: float) -> list[Arrival]:
        return [] if followups is None else [told(arrival) for arrival in followups(ended, now_s)]

    span_s = task.requests / task.rate_rps
    controls = [Periodic(every_s=1.0, run=_leaves(next(iter(engines)), AWAY_FROM * span_s, AWAY_FOR * span_s))] if task.away else []
    result = simulate(arrivals(), engines, scheduler, controls=controls, followups=more, until_s=math.inf)
    return result.records, router, cached / max(1, tokens)


def _leaves(name: str, at_s: float, for_s: float) -> Callable[[float, Scheduler, Mapping[str, EngineModel]], None]:
    def run(now_s: float, scheduler: Scheduler, _engines: Mapping[str, EngineModel]) -> None:
        scheduler.set_draining(name, draining=at_s <= now_s < at_s + for_s)

    return run
