"""Measures an engine at several concurrencies with a closed loop of clients, fits a plant to that, and derives control gains from it.

The result is the plant that statera controls, in which prefill delays decoding, and not the pure decode step that `hmas profile` measures.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import aiohttp
import msgspec
import numpy as np

from hmas.agents.statera.gains import Gains, Margins, PlantFit, derive, margins
from hmas.controller.core.types import Request
from hmas.controller.scheduling.results import Ended
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.profile import Profile
from hmas.loadgen.streams import stream
from hmas.planning import StudyError
from hmas.planning.case import PRESETS, Case
from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.running import build
from hmas.profiling.probe import Asker
from hmas.profiling.target import ProbeError, Target
from hmas.workloads.table import prior

LEAST_RUNGS = 3
SPREAD = 0.5
"""Largest relative deviation of an answer's length from the mean, so that clients do not run in lockstep."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one rung: mean prompt and output tokens, requests per client, and seed."""

    prompt_tokens: int = 256
    output_tokens: int = 64
    rounds: int = 4
    seed: int = 1


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement at one concurrency: medians of TPOT, decode time and service time, and completed requests per second."""

    n: int
    tpot_ms: float
    decode_s: float
    service_s: float
    rps: float
    answers: int


class Timing(msgspec.Struct, frozen=True):
    """One answer: when its request was sent, when its first and last tokens came, and its number of tokens."""

    sent_s: float
    first_s: float
    last_s: float
    tokens: int


def rung_of(n: int, timings: Sequence[Timing]) -> Rung | None:
    """Evaluates one concurrency without the first request of each client, as all clients start at once. None with too few answers."""
    counted = [one for one in sorted(timings, key=lambda one: one.sent_s)[n:] if one.tokens >= 2 and one.last_s > one.first_s]
    if not counted:
        return None
    ends = sorted(one.last_s for one in timings)
    return Rung(
        n=n,
        tpot_ms=float(np.median([1000.0 * (one.last_s - one.first_s) / (one.tokens - 1) for one in counted])),
        decode_s=float(np.median([one.last_s - one.first_s for one in counted])),
        service_s=float(np.median([one.last_s - one.sent_s for one in counted])),
        rps=(len(ends) - n) / max(1e-6, ends[len(ends) - n] - ends[0]) if len(ends) > n else 0.0,
        answers=len(counted),
    )


def simulated(profile: Profile, ladder: Sequence[int], load: Load) -> list[Rung]:
    """Measures an engine model in virtual time."""
    rungs = [rung_of(n, _simulated(profile, n, load)) for n in ladder if n <= profile.max_num_seqs]
    return [rung for rung in rungs if rung is not None]


def _simulated(profile: Profile, n: int, load: Load) -> list[Timing]:
    kind = Kind(profile=profile, n_run=profile.max_num_seqs, token_budget=profile.max_num_batched_tokens, model=profile.model)
    case = Case(workload="", fleet=Fleet(groups=[Group(kind=kind, count=1)]), policy="fcfs", admission=PRESETS["open"])
    scheduler, engines = build(case)
    believe, rng, sent = prior(), stream(load.seed, "ladder", n), 0

    def request(at_s: float) -> Arrival:
        nonlocal sent
        sent += 1
        output = _around(load.output_tokens, rng)
        prompt = _around(load.prompt_tokens, rng)
        made = Request(id=str(sent), tenant="ladder", model=profile.model, arrival_s=at_s, prompt_tokens=prompt, max_output_tokens=output)
        return Arrival(request=made, estimate=believe, output_tokens=output)

    def follow(_ended: Ended, now_s: float) -> Iterable[Arrival]:
        return [request(now_s)] if sent < n * load.rounds else []

    made = simulate([request(0.0) for _ in range(n)], engines, scheduler, followups=follow)
    return [
        Timing(one.arrival_s, one.arrival_s + one.ttft_ms / 1000.0, one.arrival_s + one.total_ms / 1000.0, one.output_tokens)
        for one in made.records
        if one.ttft_ms >= 0.0 and one.total_ms >= 0.0
    ]


async def live(
    target: Target, ladder: Sequence[int], load: Load, *, api_key: str, max_seconds: float, on_rung: Callable[[Rung], None]
) -> list[Rung]:
    """Measures a live engine, rung by rung; none begins after `max_seconds`.

    Raises:
        ProbeError: The engine refuses, breaks off, does not stream, or a rung takes longer than `max_seconds`.
    """
    loop, rungs = asyncio.get_running_loop(), list[Rung]()
    begun_s = loop.time()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout, auto_decompress=False) as session:
        asker = Asker(session, target, api_key, load.seed)
        await asker.calibrate()
        for n in ladder:
            if loop.time() - begun_s >= max_seconds:
                break
            try:
                async with asyncio.timeout(max_seconds):
                    rung = rung_of(n, await _live(asker, n, load))
            except TimeoutError as error:
                raise ProbeError(f"{n} clients took longer than {max_seconds:g} s; allow more with --max-seconds") from error
            if rung is not None:
                rungs.append(rung)
                on_rung(rung)
    return rungs


async def _live(asker: Asker, n: int, load: Load) -> list[Timing]:
    rng, timings, errors = stream(load.seed, "ladder", n), list[Timing](), list[ProbeError]()

    async def client() -> None:
        for _ in range(load.rounds):
            try:
                answer = await asker.ask(asker.text(_around(load.prompt_tokens, rng)), _around(load.output_tokens, rng))
            except ProbeError as error:
                errors.append(error)
                return
            timings.append(Timing(answer.sent_s, answer.times_s[0], answer.times_s[-1], answer.output_tokens))

    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(client())
    if errors:
        raise errors[0]
    return timings


def _around(mean: int, rng: np.random.Generator) -> int:
    return max(2, round(mean * (1.0 + SPREAD * float(rng.uniform(-1.0, 1.0)))))


class Identified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an identification run.

    Attributes:
        misfit: Largest relative error of the fitted TPOT.
        margins: Stability margins of the derived gains on this plant; `default_margins`: those of the default gains.
    """

    rungs: list[Rung]
    plant: PlantFit
    gains: Gains
    misfit: float
    margins: Margins
    default_margins: Margins


def identify(rungs: Sequence[Rung], *, tpot_ms: float, period_s: float, tick_s: float) -> Identified:
    """Fits tpot(n) = base + slope n and derives the gains.

    Args:
        rungs: Three or more, by rising concurrency.
        tpot_ms: TPOT target for which the gains are derived; 0 for the highest measured concurrency.
        period_s: As `agents.statera_period_s`.
        tick_s: As `scheduler.tick_s`, the time between two views.

    Raises:
        StudyError: There are too few rungs, or TPOT does not rise with concurrency.
    """
    if len(rungs) < LEAST_RUNGS:
        raise StudyError(f"{len(rungs)} concurrencies were measured; allowed: {LEAST_RUNGS} or more (--ladder, --max-seconds)")
    n = np.array([float(rung.n) for rung in rungs])
    tpot = np.array([rung.tpot_ms for rung in rungs])
    base_ms, slope_ms = _line(n, tpot)
    if slope_ms <= 0.0:
        raise StudyError(f"TPOT does not rise from {rungs[0].n} to {rungs[-1].n} requests at once; allowed: a ladder that loads the engine")
    at = float(n[-1]) if tpot_ms <= 0.0 else min(float(n[-1]), max(1.0, (tpot_ms - base_ms) / slope_ms))
    near = min(rungs, key=lambda rung: abs(rung.n - at))
    plant = PlantFit(
        base_ms=round(base_ms, 4),
        slope_ms=round(slope_ms, 5),
        n_run=round(at, 2),
        decode_s=round(near.decode_s, 4),
        service_s=round(near.service_s, 4),
        rps=round(near.rps, 4),
        view_s=tick_s,
        period_s=period_s,
    )
    exact = derive(plant)
    gains = Gains(**{name: float(f"{getattr(exact, name):.4g}") for name in exact.__struct_fields__})
    if problem := gains.problem():
        raise StudyError(f"the derived {problem}: the measurement cannot be right")
    fitted = base_ms + slope_ms * n
    return Identified(
        rungs=list(rungs),
        plant=plant,
        gains=gains,
        misfit=float(np.max(np.abs(fitted - tpot) / tpot)),
        margins=margins(gains, plant),
        default_margins=margins(Gains(), plant),
    )


def _line(n: np.ndarray, tpot: np.ndarray) -> tuple[float, float]:
    """Fits a line by least squares on relative errors, with a base of 0 or more."""
    weights = 1.0 / tpot
    design = np.column_stack([np.ones_like(n), n]) * weights[:, None]
    (base, slope), *_ = np.linalg.lstsq(design, np.ones_like(n), rcond=None)
    if base >= 0.0:
        return float(base), float(slope)
    return 0.0, float((n * weights).sum() / ((n * weights) ** 2).sum())
