"""Two tenants through the product as it comes: one stays within its share, first alone, then beside one that floods."""

import asyncio
import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hmas.controller.core.statistics.quantiles import percentile
from hmas.loadgen.results import Result, is_good
from hmas.loadgen.workload import Arrival
from hmas_lab.as_it_comes import Stack
from hmas_lab.compare import plain
from hmas_lab.frontdoor.arms import Arm
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.runs import Runs, most_good_rps
from hmas_lab.result_files import VERSION

STEADY, FLOODS = "gold", "free"
LOOK_AT = 0.8
"""When `hmas status` is read, as a share of the run."""


class FloodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The study in numbers.

    Attributes:
        weights: Weights of the steady tenant; the other's is 1.
        leads_s: Seconds after which the flood begins. At 0 it finds an engine that nobody uses, which is open to it alone until the steady
            tenant's first request; after a lead the gateway knows both the engine and that tenant.
        seconds: Length of the steady tenant's arrivals.
        used: What the steady tenant asks for, over its share of the capacity.
        flood: What the other asks for, over its share.
        goal: Least goodput of the steady tenant beside the flood, over its goodput alone.
    """

    weights: tuple[float, ...] = (4.0, 1.0)
    leads_s: tuple[float, ...] = (0.0, 30.0)
    seconds: float = 40.0
    used: float = 0.6
    flood: float = 10.0
    goal: float = 0.97


async def flood_study(settings: FloodSettings, load: DoorLoad, runs: Runs, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures the capacity, then each weight alone and beside the flood; returns the document.

    Raises:
        StudyError: A stack did not come up, or nothing good comes out of pass-through.
    """
    capacity_rps = most_good_rps(await runs.capacity())
    say(f"capacity: {capacity_rps:.2f} good requests/s")
    rows = [row for weight in settings.weights for row in await _weight(settings, weight, capacity_rps, load, runs)]
    document: dict[str, Any] = plain({"version": VERSION, "settings": settings, "capacity_rps": capacity_rps, "rows": rows})
    return document


async def _weight(settings: FloodSettings, weight: float, capacity_rps: float, load: DoorLoad, runs: Runs) -> list[dict[str, Any]]:
    share = weight / (1.0 + weight)
    arm = two_tenants(weight)
    steady = tenant_arrivals(load, 0, STEADY, settings.used * share * capacity_rps, settings.seconds)
    flood = tenant_arrivals(load, 1, FLOODS, settings.flood * (1.0 - share) * capacity_rps, settings.seconds)
    seen = ""

    async def look(stack: Stack) -> None:
        nonlocal seen
        await asyncio.sleep(LOOK_AT * settings.seconds)
        seen = await _status(stack)

    alone, _ = await runs.one(arm, f"alone-{weight:g}", steady)
    rows = []
    for lead_s in settings.leads_s:
        later = [
            msgspec.structs.replace(arrival, at_s=lead_s + arrival.at_s) for arrival in flood if lead_s + arrival.at_s < settings.seconds
        ]
        both, _ = await runs.one(arm, f"flood-{weight:g}-after-{lead_s:g}", sorted([*steady, *later], key=lambda one: one.at_s), look)
        found = {
            "alone": figures([one for one in alone if one.at_s >= lead_s]),
            "beside": figures([one for one in both if one.tenant == STEADY and one.at_s >= lead_s]),
            "flood": figures([one for one in both if one.tenant == FLOODS]),
        }
        over = found["beside"]["good"] / found["alone"]["good"] if found["alone"]["good"] else 0.0
        rows.append({"weight": weight, "lead_s": lead_s, **found, "over_alone": over, "met": over >= settings.goal, "status": seen})
    return rows


def two_tenants(weight: float) -> Arm:
    """The product as it comes with two tenants, each with a key of its own."""
    keys = {name: f"key-of-{name}" for name in (STEADY, FLOODS)}
    tenants = {
        name: {"weight": weight if name == STEADY else 1.0, "key_sha256": [hashlib.sha256(key.encode()).hexdigest()]}
        for name, key in keys.items()
    }
    return Arm(config={"tenants": tenants}, keys=keys)


def tenant_arrivals(load: DoorLoad, number: int, tenant: str, rps: float, seconds: float) -> list[Arrival]:
    """What one tenant sends; the same number gives the same requests."""
    return [msgspec.structs.replace(arrival, tenant=tenant) for arrival in load.arrivals(number, rps=rps, seconds=seconds)]


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """How many requests were sent and good, and the p50 and p95 of the TTFT in ms of those that were streamed."""
    ttfts_ms = sorted(one.ttft_ms for one in results if one.ttft_ms >= 0.0)
    return {
        "sent": len(results),
        "good": sum(map(is_good, results)),
        "ttft_p50_ms": round(percentile(ttfts_ms, 50), 1),
        "ttft_p95_ms": round(percentile(ttfts_ms, 95), 1),
    }


async def _status(stack: Stack) -> str:
    """`hmas status` of the running product, as an operator sees it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hmas", "status", "--admin", stack.admin),
        env=dict(stack.environment),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return out.decode(errors="replace")
