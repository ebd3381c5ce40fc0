"""A live engine under an open-loop load, and the same arrivals in the simulator."""

import asyncio
import math
from collections.abc import Sequence

import aiohttp
import msgspec
import numpy as np

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile
from hmas.loadgen.streams import stream
from hmas.profiling.probe import Answer, Asker
from hmas.profiling.target import ProbeError, Target

_BELIEVED = Estimates(slo=Slo(ttft_ms=1e12, tpot_ms=1e12))
_DRAIN_S = 120.0


class Wish(msgspec.Struct, frozen=True):
    """One request to send: when, and about how long prompt and answer are to be."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class Seen(msgspec.Struct, frozen=True):
    """One request as its client saw it; `at_s` counts from the load's beginning. `tpot_ms` is -1 where the answer had one token."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    tpot_ms: float


class Medians(msgspec.Struct, frozen=True, kw_only=True):
    """Median TTFT and TPOT of a load's requests, and how many there were."""

    ttft_ms: float
    tpot_ms: float
    requests: int


def wishes(rate_rps: float, seconds: float, *, context: int, seed: int) -> list[Wish]:
    """Poisson arrivals with log-normal lengths: prompts of 128 tokens at the median, answers of 32, both cut to what fits."""
    rng = stream(seed, "fidelity", round(1000 * rate_rps))
    count = rng.poisson(rate_rps * seconds)
    times = np.sort(rng.uniform(0.0, seconds, size=count))
    prompts = np.clip(np.exp(rng.normal(math.log(128), 0.8, size=count)), 16, min(1024, context // 2)).astype(int)
    outputs = np.clip(np.exp(rng.normal(math.log(32), 0.6, size=count)), 4, min(128, context // 4)).astype(int)
    return [Wish(*row) for row in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)]


async def measure(target: Target, wanted: Sequence[Wish], *, api_key: str = "", seed: int = 1) -> list[Seen]:
    """Sends every request at its time, whatever became of those before.

    Raises:
        ProbeError: The engine refuses or breaks off, or has not answered all within two minutes of the last arrival.
    """
    connector = aiohttp.TCPConnector(limit=0)
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        asker = Asker(session, target, api_key, seed)
        await asker.calibrate()
        texts = [asker.text(wish.prompt_tokens) for wish in wanted]
        begin_s = loop.time() + 0.2

        async def send(wish: Wish, text: str) -> Answer:
            await asyncio.sleep(begin_s + wish.at_s - loop.time())
            return await asker.ask(text, wish.output_tokens)

        try:
            async with asyncio.timeout(_DRAIN_S + max((wish.at_s for wish in wanted), default=0.0)):
                answers = await asyncio.gather(*(send(wish, text) for wish, text in zip(wanted, texts, strict=True)))
        except TimeoutError as error:
            raise ProbeError(
                f"{target.url} had not answered all within {_DRAIN_S:g} s of the last request; the load is beyond it"
            ) from error
    return [_seen(answer, begin_s) for answer in answers]


def simulated(profile: Profile, arrivals: Sequence[Seen]) -> list[Seen]:
    """The same arrivals, with the lengths that the live engine counted, against the engine model."""
    scheduler = Scheduler(
        settings=SchedulerSettings(queue_limit=1_000_000, overdue="keep", fence=False),
        instances=[InstanceSpec(name="engine", capacity_n_run=1_000_000)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    scheduler.set_controls("engine", Controls(n_run=1_000_000))
    sent = [
        Arrival(
            Request(id=str(index), tenant="t", model="m", arrival_s=one.at_s, prompt_tokens=one.prompt_tokens),
            lambda _request, _now_s: _BELIEVED,
            one.output_tokens,
        )
        for index, one in enumerate(sorted(arrivals, key=lambda one: one.at_s))
    ]
    result = simulate(sent, {"engine": EngineModel(profile)}, scheduler)
    return [
        Seen(record.arrival_s, record.prompt_tokens, record.output_tokens, record.ttft_ms, record.tpot_ms)
        for record in result.records
        if record.outcome is OutcomeKind.COMPLETED
    ]


def medians(requests: Sequence[Seen]) -> Medians:
    """Medians of a load."""
    tpots = [one.tpot_ms for one in requests if one.tpot_ms > 0]
    return Medians(
        ttft_ms=float(np.median([one.ttft_ms for one in requests])) if requests else math.nan,
        tpot_ms=float(np.median(tpots)) if tpots else math.nan,
        requests=len(requests),
    )


def _seen(answer: Answer, begin_s: float) -> Seen:
    tokens = max(answer.output_tokens, len(answer.times_s))
    first_s, last_s = answer.times_s[0], answer.times_s[-1]
    tpot_ms = 1000.0 * (last_s - first_s) / (tokens - 1) if tokens > 1 else -1.0
    return Seen(max(0.0, answer.sent_s - begin_s), answer.prompt_tokens, tokens, 1000.0 * (first_s - answer.sent_s), tpot_ms)
