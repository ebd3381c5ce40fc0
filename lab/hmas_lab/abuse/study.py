"""A steady client alone and beside hostile ones, in turn, through the product as it comes."""

import asyncio
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import orjson

from hmas.controller.runtime.clock import Clock
from hmas.planning import StudyError
from hmas_lab.as_it_comes import hmas_up
from hmas_lab.mistakes import Load, Served, measure, quantiles, ratios

MODEL = "sim"
ALONE, BESIDE = "alone", "beside hostile clients"
KINDS = ("ttft_ms", "total_ms")
MB = 1 << 20
RSS = re.compile(rb"^process_resident_memory_bytes (\S+)$", re.MULTILINE)
SETTLE_S = 8.0
"""After the last attack: what clients that left still held must be free by then."""


class AbuseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The study in numbers.

    Attributes:
        rounds: Pairs of slices, one alone and one beside hostile clients.
        slice_s: Length of a slice.
        good_rps: Requests per second of the steady client.
        p99_goal: Most that its p99 beside hostile clients may be, over its p99 alone.
        rss_goal_mb: Most that the gateway's memory may have grown afterwards.
    """

    rounds: int = 8
    slice_s: float = 8.0
    good_rps: float = 10.0
    p99_goal: float = 1.2
    rss_goal_mb: float = 100.0


async def abuse_study(settings: AbuseSettings, clock: Clock) -> dict[str, Any]:
    """Starts `hmas up` on embedded engines and measures; returns the document.

    Raises:
        StudyError: The product does not start, or tells no memory.
    """
    served: dict[str, list[Served]] = {ALONE: [], BESIDE: []}
    attacks: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="hmas-abuse-") as place:
        async with hmas_up(("sim", "sim"), Path(place)) as stack:
            gateway = stack.url
            load = Load(model=MODEL, seconds=settings.slice_s, good_rps=settings.good_rps)
            # One of each before the first figure: what the first attack allocates for good is no leak.
            await _slice(gateway, load, attacks, clock)
            await asyncio.sleep(SETTLE_S)
            before_mb = await _rss_mb(gateway)
            for number in range(settings.rounds):
                for arm in (ALONE, BESIDE) if number % 2 == 0 else (BESIDE, ALONE):
                    hostile = attacks if arm == BESIDE else None
                    served[arm].append(await _slice(gateway, load, hostile, clock))
            await asyncio.sleep(SETTLE_S)
            after_mb = await _rss_mb(gateway)
    rows = {arm: _row(runs) for arm, runs in served.items()}
    # The same comparison of the slices alone with themselves says what a ratio is worth here.
    noise = {kind: _ratio(served[ALONE][::2], served[ALONE][1::2], kind) for kind in KINDS}
    ratios = {kind: _ratio(served[BESIDE], served[ALONE], kind) for kind in KINDS}
    ended = rows[BESIDE]["good"].get("200", 0)
    sent = sum(rows[BESIDE]["good"].values())
    goals = [
        {"goal": f"p99 of whole answers at most {settings.p99_goal:g} times that alone", "value": ratios["total_ms"]},
        {"goal": "every request of the steady client ends", "value": ended / sent if sent else 0.0},
        {"goal": f"memory back within {settings.rss_goal_mb:g} MB", "value": after_mb - before_mb},
    ]
    met = (ratios["total_ms"] <= settings.p99_goal, sent > 0 and ended == sent, after_mb - before_mb <= settings.rss_goal_mb)
    return {
        "version": 1,
        "settings": msgspec.to_builtins(settings),
        "summary": {
            "rows": rows,
            "ratios": ratios,
            "noise": noise,
            "rss_mb": {"before": before_mb, "after": after_mb},
            "attacks": {name: dict(count) for name, count in attacks.items()},
            "goals": [{**goal, "met": reached} for goal, reached in zip(goals, met, strict=True)],
        },
    }


async def _slice(gateway: str, load: Load, attacks: dict[str, Counter[str]] | None, clock: Clock) -> Served:
    """One slice of the steady client, with hostile clients beside it where `attacks` takes what those were answered."""
    if attacks is None:
        return await measure(gateway, load, clock)
    address = urlsplit(gateway)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hmas_lab.abuse.attacks",
        str(address.hostname),
        str(address.port),
        load.model,
        str(load.seconds),
        stdout=asyncio.subprocess.PIPE,
    )
    served, (output, _) = await asyncio.gather(measure(gateway, load, clock), process.communicate())
    if process.returncode:
        raise StudyError(f"the hostile clients ended with exit code {process.returncode}")
    for name, count in orjson.loads(output).items():
        attacks.setdefault(name, Counter()).update(count)
    return served


def _row(runs: list[Served]) -> dict[str, Any]:
    return {"good": dict(sum((Counter(run.good) for run in runs), Counter[str]())), **{kind: quantiles(runs, kind) for kind in KINDS}}


def _ratio(runs: list[Served], others: list[Served], kind: str) -> float:
    """The p99 of one over that of the other; infinite if there is nothing to divide by."""
    found = ratios(runs, others, kind)["p99"]
    return float("inf") if found is None else found


async def _rss_mb(gateway: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway}/metrics") as response:
        found = RSS.search(await response.read())
    if found is None:
        raise StudyError(f"{gateway}/metrics has no process_resident_memory_bytes")
    return round(float(found[1]) / MB, 1)
