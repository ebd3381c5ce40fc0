"""Step, ramp and bursts of the load on a real vLLM: what statera's window does there, beside the same gateway without agents."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from hmas.controller.admin.client import AdminClient
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.core.types import DEFAULT_IMPORTANCE, Slo
from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.arrivals import piecewise_times
from hmas.loadgen.process import LoadSpec, run_process, write_plan
from hmas.loadgen.results import Result, is_good, read_results
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import Arrival, Turn
from hmas.planning import StudyError
from hmas_lab.frontdoor.arms import Arm, arm_of, running_arm
from hmas_lab.frontdoor.capacity import capacity_points
from hmas_lab.frontdoor.settings import PASS, PLAIN
from hmas_lab.questions import Question, data_dir, read_questions
from hmas_lab.statera.responses import CHANGE_S, SHAPES
from hmas_lab.vllm_engine import VllmServer, running_vllm

UNSTEERED = "qos alone"
STEERED = "statera"
ARMS: Mapping[str, Arm] = {
    PASS: arm_of(PASS),
    PLAIN: arm_of(PLAIN),
    UNSTEERED: Arm(("--agents", "qos")),
    STEERED: Arm(("--agents", "qos,statera")),
}
"""How `hmas up` is started. With qos alone nothing sets a window: what differs from no agents is noise and the agent's CPU time."""
COMPARED = (PLAIN, UNSTEERED, STEERED)
MODEL = "tiny"
READ_EVERY_S = 0.5
SETTLE_S = 2.0
SPAN_S = 240.0
"""Length of the shapes as simulated."""


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent.

    Attributes:
        seconds: Length of each shape; the simulated ones are shortened to it.
        slo: Targets that every request declares.
        ramp: Rates, requests per second, between which capacity is looked for; over `ramp_s`.
        shapes, repeats: Which shapes, and how often each, on other arrivals each time.
        max_prompt, output_tokens: Longest question, and the range that answers are cut to: the tiny model never ends by itself.
    """

    seconds: float = 80.0
    slo: Slo = Slo(ttft_ms=1000.0, tpot_ms=30.0)
    ramp: tuple[float, float] = (4.0, 36.0)
    ramp_s: float = 40.0
    max_prompt: int = 200
    output_tokens: tuple[int, int] = (16, 64)
    shapes: tuple[str, ...] = tuple(SHAPES)
    repeats: int = 1
    seed: int = 1
    drain_s: float = 40.0


class Moment(msgspec.Struct, frozen=True):
    """The gateway's state at a time of a run: window, requests in flight, waiting requests, factor on the TPOT guard."""

    at_s: float
    n_run: int
    in_flight: int
    queued: int
    guard_factor: float = 1.0


async def study(settings: LiveSettings, python: Path, model: Path, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Every shape under every arm, the same requests for all of them in a repeat.

    Raises:
        StudyError: Nothing good comes out of the engine in pass-through.
        DemoBroken: vLLM does not start.
        StudyError: `hmas up` does not.
    """
    questions = read_questions(data_dir(), max_prompt=settings.max_prompt, max_output=10_000)
    server = VllmServer(python=python, model=model, cores="nobind")
    async with running_vllm(server, folder, MODEL) as url:
        low, high = settings.ramp
        steps = [low + (high - low) * (place + 0.5) / 40 for place in range(40)]
        edges = [settings.ramp_s * place / 40 for place in range(41)]
        rising = _arrivals(settings, questions, edges, steps, "capacity")
        results, _ = await _run(PASS, url, rising, folder=folder / "capacity", settings=settings)
        capacity_rps = max((point.good_rps for point in capacity_points(results)), default=0.0)
        if not capacity_rps:
            raise StudyError("vLLM in pass-through answered no request of the rising load within its targets")
        say(f"capacity: {capacity_rps:.1f} good requests/s")
        rows, traces = [], dict[str, dict[str, list[tuple[float, int]]]]()
        for repeat, shape in product(range(settings.repeats), settings.shapes):
            edges_s, factors = SHAPES[shape]
            scale = settings.seconds / SPAN_S
            edges, rates = [at * scale for at in edges_s], [factor * capacity_rps for factor in factors]
            arrivals = _arrivals(settings, questions, edges, rates, f"{shape}-{repeat}")
            # Which arm comes first takes turns: an engine that has just been loaded is not the one that stood idle.
            turn = repeat % len(COMPARED)
            for name in (*COMPARED[turn:], *COMPARED[:turn]):
                place = folder / f"{shape}-{repeat}-{name.replace(' ', '-')}"
                results, moments = await _run(name, url, arrivals, folder=place, settings=settings)
                found = figures(results, moments, CHANGE_S[shape] * scale, settings.seconds)
                row = {"shape": shape, "run": repeat + 1, "arm": name, **found}
                rows.append(row)
                traces.setdefault(shape, {})[name] = [(round(one.at_s, 1), one.n_run) for one in moments]
                say(f"{shape}, {name}: {row['good']} good of {row['sent']}, window {row['window_least']} to {row['window_most']}")
    return {"capacity_rps": round(capacity_rps, 2), "settings": msgspec.to_builtins(settings), "rows": rows, "traces": traces}


def figures(results: Sequence[Result], moments: Sequence[Moment], change_s: float, end_s: float) -> dict[str, Any]:
    """What a run came to, of what arrived after the change of load.

    `bound_share`: share of the moments at which requests waited and the window was full.
    """
    scored = [result for result in results if result.at_s >= change_s]
    looked = [one for one in moments if change_s <= one.at_s <= end_s]
    windows = [one.n_run for one in looked] or [0]
    began = [r for r in scored if 0.0 <= r.ttft_ms <= r.slo.ttft_ms]
    return {
        "sent": len(scored),
        "good": sum(map(is_good, scored)),
        "ttft_missed": len(scored) - len(began),
        "tpot_missed": sum(r.tpot_ms > r.slo.tpot_ms for r in began),
        "window_least": min(windows),
        "window_median": median(windows),
        "window_most": max(windows),
        "guard_factor_least": round(min((one.guard_factor for one in looked), default=1.0), 2),
        "guard_factor_median": round(median([one.guard_factor for one in looked] or [1.0]), 2),
        "in_flight_most": max((one.in_flight for one in looked), default=0),
        "bound_share": round(sum(one.queued > 0 and one.in_flight >= one.n_run for one in looked) / max(1, len(looked)), 3),
    }


def _arrivals(
    settings: LiveSettings, questions: Sequence[Question], edges_s: Sequence[float], rates: Sequence[float], name: str
) -> list[Arrival]:
    """Chats with the targets and a cap, at a rate that is constant between edges; the same for the same name."""
    times = piecewise_times(edges_s, rates, stream(settings.seed, f"statera-live-times-{name}")).tolist()
    chosen = stream(settings.seed, f"statera-live-questions-{name}").integers(0, len(questions), size=len(times)).tolist()
    least, most = settings.output_tokens
    found = []
    for at_s, which in zip(times, chosen, strict=True):
        question = questions[which]
        tokens = min(most, max(least, question.output_tokens))
        found.append(
            Arrival(
                at_s=at_s,
                messages=(Turn("user", question.text),),
                prompt_tokens=estimate_tokens(question.text),
                output_tokens=tokens,
                max_tokens=tokens,
                task_type=question.task,
                importance=DEFAULT_IMPORTANCE,
                slo=settings.slo,
                tenant="default",
                kind="chat",
            )
        )
    return found


async def _run(
    name: str, url: str, arrivals: Sequence[Arrival], *, folder: Path, settings: LiveSettings
) -> tuple[list[Result], list[Moment]]:
    async with running_arm(ARMS[name], (f"vllm={url}",), folder) as stack:
        await asyncio.sleep(SETTLE_S)
        plan, results = folder / "plan.jsonl", folder / "results.jsonl"
        # The tiny model ends an answer by chance; the engine is told the length that was drawn.
        spec = LoadSpec(url=stack.url, model=stack.model, length_channel="vllm", drain_s=settings.drain_s)
        write_plan(plan, arrivals, spec, results)
        moments: list[Moment] = []
        reading = asyncio.create_task(_read(AdminClient(stack.admin, token_file=folder / "state" / ADMIN_TOKEN_FILE), moments))
        try:
            await run_process(plan, lambda _progress: None)
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
    return read_results(results), moments


async def _read(admin: AdminClient, moments: list[Moment]) -> None:
    """Asks the gateway for its state again and again until it is cancelled."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        status = await asyncio.to_thread(admin.status)
        (instance,) = status["instances"]
        moments.append(
            Moment(
                loop.time() - began_s,
                int(instance["n_run"]["value"]),
                instance["in_flight"],
                status["queue"]["queued"],
                float(instance["guard"]["value"] or 1.0),
            )
        )
        await asyncio.sleep(READ_EVERY_S)
