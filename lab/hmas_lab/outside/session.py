"""Runs load tools before an engine and before the gateway in front of it, in turn; beside the engine only what is measured runs."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec

from hmas.planning import StudyError
from hmas_lab.blocks import drawn_order
from hmas_lab.outside.tools import VLLM, Ask, Figures, Tool, figures

DIRECT, PASS, GATEWAY = "direct", "pass-through", "gateway"
ARMS = (DIRECT, PASS, GATEWAY)
"""The engine itself; the gateway with nothing switched on, which costs the machine a second process; the product as it comes."""
OVERTIME_S = 90.0
"""What a tool may take beside the length of its load: it starts, makes its texts, and waits for the last answers."""
CAPACITY_TURNS, CAPACITY_IN_FLIGHT, CAPACITY_S = 3, 32, 120.0
OWN_CAPACITY_S = 12.0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One load by one tool.

    Attributes:
        load: In words, such as `0.5 of capacity`.
        rps: Requests per second.
        goal: Least share of the direct calls' goodput; None where none is set.
    """

    tool: Tool
    place: Path
    load: str
    rps: float
    ttft_ms: int
    tpot_ms: int
    goal: float | None = None


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What the tools are pointed at.

    Attributes:
        stand: Starts what an arm needs, and gives its base address.
        folder: Every run leaves its tool's files and log in a folder of its own here.
        seconds: How long a load is.
        prompt_tokens, output_tokens: Size of every request.
    """

    stand: Callable[[str], AbstractAsyncContextManager[str]]
    model: str
    tokenizer: Path
    folder: Path
    seconds: float
    prompt_tokens: int = 128
    output_tokens: int = 32


async def capacity_rps(site: Site, place: Path, in_flight: int = CAPACITY_IN_FLIGHT) -> float:
    """Requests per second that the engine completes with so many in flight all the time, by vLLM's own tool, called directly."""
    async with site.stand(DIRECT) as url:
        ask = _ask(site, url, rps=float("inf"), requests=CAPACITY_TURNS * in_flight, targets=(60_000, 60_000), seed=1)
        measured = await run_tool(VLLM, place, msgspec.structs.replace(ask, in_flight=in_flight), site.folder / "capacity")
    return measured.throughput_rps


async def own_capacity_rps(site: Site, tool: Tool, place: Path, most_rps: float) -> float:
    """The same as one tool finds it, `most_rps` at most: a tool that takes much CPU leaves an engine on the same machine less.

    Raises:
        StudyError: The tool fails.
    """
    async with site.stand(DIRECT) as url:
        ask = _ask(site, url, rps=most_rps, requests=round(most_rps * OWN_CAPACITY_S), targets=(60_000, 60_000), seed=3)
        measured = await run_tool(tool, place, ask, site.folder / f"capacity-{tool.name}")
    return min(most_rps, measured.throughput_rps)


async def compare(site: Site, cell: Cell, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """One cell: rounds of direct, pass-through and gateway in a drawn order, each with the same arrivals and texts.

    Returns:
        The cell's row; where the tool failed it has `failed`, the reason, and no ratio.
    """
    taken: dict[str, list[Figures]] = {arm: [] for arm in ARMS}
    row: dict[str, Any] = {"tool": cell.tool.name, "load": cell.load, "rps": round(cell.rps, 2), "model": site.model}
    row |= {"ttft_ms": cell.ttft_ms, "tpot_ms": cell.tpot_ms, "goal": cell.goal}
    for number in range(rounds):
        for arm in drawn_order(ARMS, seed=cell.ttft_ms + cell.tpot_ms, number=number):
            requests = max(10, round(cell.rps * site.seconds))
            name = f"{cell.tool.name}-{cell.load}-{cell.ttft_ms}-{cell.tpot_ms}-{number}-{arm}".replace(" ", "_")
            try:
                async with site.stand(arm) as url:
                    ask = _ask(site, url, rps=cell.rps, requests=requests, targets=(cell.ttft_ms, cell.tpot_ms), seed=100 + number)
                    one = await run_tool(cell.tool, cell.place, ask, site.folder / name)
            except StudyError as error:
                say(f"{cell.tool.name}, {cell.load}, {arm}: {error}")
                return row | {"failed": str(error)}
            taken[arm].append(one)
            words = f"{one.good} of {requests} good  P95 TTFT {one.ttft_p95_ms:7.1f} ms  P95 TPOT {one.tpot_p95_ms:5.1f} ms"
            say(f"{cell.tool.name:16} {cell.load:16} {arm:12} {words}  {one.completed} answered, {one.failed} not")
    return row | {arm: [msgspec.to_builtins(one) for one in ones] for arm, ones in taken.items()} | _summary(taken)


def _summary(taken: dict[str, list[Figures]]) -> dict[str, Any]:
    goodput = {arm: fmean(one.goodput_rps for one in taken[arm]) for arm in ARMS}
    good = {arm: sum(one.good for one in taken[arm]) for arm in ARMS}
    pairs = [through.good / direct.good for direct, through in zip(taken[DIRECT], taken[GATEWAY], strict=True) if direct.good]
    return {
        "goodput_rps": {arm: round(value, 3) for arm, value in goodput.items()},
        "ttft_p95_ms": {arm: round(median(one.ttft_p95_ms for one in taken[arm]), 1) for arm in ARMS},
        "ratio": round(good[GATEWAY] / good[DIRECT], 3) if good[DIRECT] else None,
        "ratios": [round(pair, 3) for pair in pairs],
    }


def _ask(site: Site, url: str, *, rps: float, requests: int, targets: Sequence[int], seed: int) -> Ask:
    ttft_ms, tpot_ms = targets
    return Ask(
        url=url,
        model=site.model,
        tokenizer=site.tokenizer,
        rps=rps,
        requests=requests,
        prompt_tokens=site.prompt_tokens,
        output_tokens=site.output_tokens,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        seed=seed,
    )


async def run_tool(tool: Tool, place: Path, ask: Ask, folder: Path) -> Figures:
    """One load by one tool.

    Args:
        tool: Which.
        place: The `bin` folder of the tool's environment.
        ask: The load.
        folder: Made here; the tool's files and its log, `tool.log`, lie in it.

    Raises:
        StudyError: The tool does not start, fails, takes far too long, or writes no figures.
    """
    await asyncio.to_thread(folder.mkdir, parents=True)
    log = folder / "tool.log"
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HOME": str(folder), **dict(tool.env)}
    expected_s = CAPACITY_S if ask.rps == float("inf") else ask.requests / ask.rps
    begun_s = time.monotonic()
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *tool.command(place, ask, folder), stdout=output, stderr=output, env=environment, cwd=folder, start_new_session=True
            )
        except OSError as error:
            raise StudyError(f"{tool.name} does not start: {error.strerror}") from error
        try:
            async with asyncio.timeout(expected_s + OVERTIME_S):
                await process.wait()
        except TimeoutError:
            raise StudyError(f"{tool.name} was not done after {time.monotonic() - begun_s:.0f} s; see {log}") from None
        finally:
            if process.returncode is None:
                _kill_session(process.pid)
                await process.wait()
    if process.returncode:
        raise StudyError(f"{tool.name} ended with status {process.returncode}: {last_lines(log)}")
    return figures(tool, folder)


def last_lines(log: Path) -> str:
    """The end of a log, for a message."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-3:])[-500:]


def _kill_session(pid: int) -> None:
    """Ends the tool and the workers that it started."""
    try:
        os.killpg(pid, 9)
    except ProcessLookupError:
        return
