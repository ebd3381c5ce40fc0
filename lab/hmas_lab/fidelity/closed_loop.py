"""Users who each send their next request when the one before has been answered, against one engine in virtual time."""

import heapq
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.model import EngineModel, SimRequest
from hmas.loadgen.streams import stream

_NO_TARGET = Slo(ttft_ms=1e12, tpot_ms=1e12)
_BELIEVED = Estimates(slo=_NO_TARGET)
_ENGINE = "engine"
_STAGGER_S = 1e-3
"""Users begin one after the other, this far apart, as threads of a load generator do."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What the users of a simulated run saw.

    Attributes:
        completed: Requests answered within the run.
        ttft_ms: Median from sending a request to its first token.
        tpot_ms: Median over requests of the mean time between their tokens; 0 where no answer had two.
        tokens_per_s: Output tokens of answered requests over the run's time.
    """

    completed: int
    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float


def run_closed_loop(
    engine: EngineModel,
    lengths: Sequence[tuple[int, int]],
    *,
    users: int,
    seconds: float,
    pauses_ms: Sequence[float] = (0.0,),
    seed: int = 1,
) -> Observed:
    """Simulates closed-loop users.

    Args:
        engine: A fresh engine; nothing stands in front of it but an empty queue, first come first served.
        lengths: (prompt, output) tokens, taken in a random order, all of them before any comes again.
        users: How many, 1 or more.
        seconds: Virtual time from the first request to the end.
        pauses_ms: Times between an answer's end and the next request's arrival, drawn with replacement.
        seed: The order of lengths and pauses follows from it and from the number of users.
    """
    drawn = _draws(engine, lengths, pauses_ms, users, seed)
    sent = 0

    def arrival(user: int, from_s: float) -> Arrival:
        nonlocal sent
        prompt, output, pause_s = next(drawn)
        sent += 1
        request = Request(
            id=f"{user}.{sent}", tenant="users", model="m", arrival_s=from_s + pause_s, prompt_tokens=prompt, max_output_tokens=output
        )
        return Arrival(request, _believed, output)

    def followups(ended: Ended, now_s: float) -> Iterable[Arrival]:
        return (arrival(int(ended.entry.request.id.partition(".")[0]), now_s),)

    scheduler = Scheduler(
        settings=SchedulerSettings(queue_limit=1_000_000, overdue="keep", fence=False),
        instances=[InstanceSpec(name=_ENGINE, capacity_n_run=1_000_000)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    # The engine's own limits hold requests back, not a window in front of it.
    scheduler.set_controls(_ENGINE, Controls(n_run=1_000_000))
    result = simulate(
        [arrival(user, user * _STAGGER_S) for user in range(users)],
        {_ENGINE: engine},
        scheduler,
        followups=followups,
        tick_s=seconds,
        until_s=seconds,
    )
    done = [r for r in result.records if r.outcome is OutcomeKind.COMPLETED and r.arrival_s + r.total_ms * 1e-3 <= seconds]
    return Observed(
        completed=len(done),
        ttft_ms=_median(r.ttft_ms for r in done),
        tpot_ms=_median(r.tpot_ms for r in done if r.output_tokens > 1),
        tokens_per_s=sum(r.output_tokens for r in done) / seconds,
    )


def run_bare(
    engine: EngineModel,
    lengths: Sequence[tuple[int, int]],
    *,
    users: int,
    seconds: float,
    pauses_ms: Sequence[float] = (0.0,),
    seed: int = 1,
) -> Observed:
    """As `run_closed_loop`, from the engine alone: no queue, scheduler or tick in between, which here do nothing but cost time.

    A fit simulates hundreds of runs. What it leaves out is what a first-come queue with an endless window leaves alone, so that both give
    the same figures; a test holds them to it.
    """
    drawn = _draws(engine, lengths, pauses_ms, users, seed)
    front_end_s = engine.profile.request_ms / 1000.0
    coming: list[tuple[float, int, SimRequest]] = []
    made = tokens = 0
    arrived_s: dict[str, float] = {}
    first_s: dict[str, float] = {}
    ttfts_ms: list[float] = []
    tpots_ms: list[float] = []

    def send(user: str, from_s: float) -> None:
        nonlocal made
        prompt, output, pause_s = next(drawn)
        made += 1
        name = f"{user}.{made}"
        arrived_s[name] = from_s + pause_s
        enters_s = from_s + pause_s + front_end_s
        heapq.heappush(coming, (enters_s, made, SimRequest(name, prompt, output, arrival_s=enters_s)))

    for user in range(users):
        send(str(user), user * _STAGGER_S)
    while True:
        due_s = engine.due_s
        now_s = coming[0][0] if coming else float("inf")
        if due_s is not None and due_s <= now_s:
            now_s = due_s
        if now_s > seconds:
            break
        if due_s == now_s:
            stretch = engine.end()
            for event in stretch.first:
                first_s[event.id] = now_s
            for event in stretch.finished:
                came_s, token_s = arrived_s.pop(event.id), first_s.pop(event.id)
                ttfts_ms.append(1000.0 * (token_s - came_s))
                if event.tokens_so_far > 1:
                    tpots_ms.append(1000.0 * (now_s - token_s) / (event.tokens_so_far - 1))
                tokens += event.tokens_so_far
                send(event.id.partition(".")[0], now_s)
        else:
            engine.sync(now_s)
        while coming and coming[0][0] <= now_s:
            engine.add(heapq.heappop(coming)[2])
        if engine.due_s is None:
            engine.begin(now_s)
    return Observed(completed=len(ttfts_ms), ttft_ms=_median(ttfts_ms), tpot_ms=_median(tpots_ms), tokens_per_s=tokens / seconds)


def _draws(
    engine: EngineModel, lengths: Sequence[tuple[int, int]], pauses_ms: Sequence[float], users: int, seed: int
) -> Iterator[tuple[int, int, float]]:
    """Prompt, output and pause in seconds. All lengths in one random order, then in another: so that their mean is the log's."""
    rng = stream(seed, "closed-loop", users)
    longest = min(engine.profile.max_model_len, engine.profile.kv_capacity_tokens)
    while True:
        pauses = rng.choice(pauses_ms, size=len(lengths)).tolist()
        for index, pause_ms in zip(rng.permutation(len(lengths)).tolist(), pauses, strict=True):
            prompt, output = lengths[index]
            output = min(output, longest - 1)
            yield min(prompt, longest - output), output, 1e-3 * pause_ms


def _believed(_request: Request, _now_s: float) -> Estimates:
    return _BELIEVED


def _median(values: Iterable[float]) -> float:
    listed = list(values)
    return float(np.median(listed)) if listed else 0.0
