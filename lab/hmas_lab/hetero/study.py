"""HeteroServe's Table 1 in this project's simulation."""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from hmas.controller.core.errors import ConfigError
from hmas.controller.core.placement import Router
from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.core.types import Controls
from hmas.controller.routing.least_loaded import LeastLoaded
from hmas.controller.routing.turns import RoundRobin
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import RequestRecord, simulate
from hmas.engines.sim.model import EngineModel
from hmas_lab.hetero.cluster import DEVICES, GPUS, MODEL, Gpu, profile_of
from hmas_lab.hetero.load import SLO_TTFT_MS, load, mean_context_tokens
from hmas_lab.hetero.routers import CapabilityWeighted, LatencyAware, WeightedRoundRobin

PAPER_RPS = 49.8
"""1.0 x saturation in the paper's own simulator (Table 2)."""
PAPER: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "uniform": (17_234, 0.264, 179_849),
        "capacity-proportional": (25_489, 0.271, 58_937),
        "latency-aware": (36_770, 0.663, 1_079),
        "capability-weighted": (36_772, 0.688, 1_044),
    }
)
"""Table 1: tokens/s, share within the SLO, P95 TTFT in ms. The last row is HeteroServe itself."""
SCHEDULERS = (*PAPER, "central-queue")
"""What is compared; the last is this project's own way, which the paper does not have."""

PROBE_REQUESTS = 4000
_PROBE_RPS = 1e6
_MAX_SEEDS = 100
_MAX_REQUESTS = 1_000_000


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One scheduler under one seed.

    Attributes:
        tokens_per_s: Prompt and output tokens of all requests over the time from the first arrival to the last end.
        output_tokens_per_s: Output tokens alone, likewise.
        slo_attainment: Share of the requests whose first token came within 500 ms.
    """

    scheduler: str
    seed: int
    tokens_per_s: float
    output_tokens_per_s: float
    slo_attainment: float
    ttft_ms_p50: float
    ttft_ms_p95: float
    end_s: float


def run(
    seeds: int = 5,
    requests: int = 10_000,
    *,
    load_factor: float = 1.0,
    rate: float | None = None,
    schedulers: Sequence[str] = SCHEDULERS,
    probe_requests: int = PROBE_REQUESTS,
    on_cell: Callable[[Cell], None] | None = None,
) -> dict[str, Any]:
    """Runs every scheduler on the same arrivals, seeds 0 and up.

    Args:
        seeds: How many, 1 to 100.
        requests: Per run, 1 to a million.
        load_factor: Arrival rate over the saturation of this simulation's cluster, more than 0.
        rate: Arrivals per second, in place of `load_factor`.
        schedulers: Which, of `SCHEDULERS`.
        probe_requests: Length of the queue by which the saturation of a device is measured, 8 to a million.
        on_cell: Told each result as it comes.

    Returns:
        JSON-ready: the load, the cluster's saturation by device kind, one row a scheduler (means and standard deviations over the seeds,
        with the paper's figures beside them), and every cell.

    Raises:
        ConfigError: An argument is out of its range.
    """
    _check(seeds=seeds, requests=requests, load_factor=load_factor, rate=rate, schedulers=schedulers, probe_requests=probe_requests)
    saturation = {gpu.name: saturation_rps(gpu, gpu.batch(mean_context_tokens()), probe_requests) for gpu in GPUS}
    cluster_rps = sum(gpu.count * saturation[gpu.name] for gpu in GPUS)
    rps = load_factor * cluster_rps if rate is None else rate
    cells: list[Cell] = []
    for name in schedulers:
        for seed in range(seeds):
            cell = run_cell(name, seed, requests, rps, saturation)
            cells.append(cell)
            if on_cell is not None:
                on_cell(cell)
    return {
        "seeds": seeds,
        "requests": requests,
        "rate_rps": rps,
        "load_factor": rps / cluster_rps,
        "saturation_rps": cluster_rps,
        "saturation_rps_by_gpu": saturation,
        "paper_rate_rps": PAPER_RPS,
        "slo_ttft_ms": SLO_TTFT_MS,
        "rows": [_row(name, [cell for cell in cells if cell.scheduler == name]) for name in schedulers],
        "cells": [msgspec.to_builtins(cell) for cell in cells],
    }


def run_cell(name: str, seed: int, requests: int, rps: float, saturation: Mapping[str, float]) -> Cell:
    """One scheduler under one seed; `saturation` is that of a device, by its kind."""
    router, batches = _scheduler_parts(name, saturation)
    records = _serve(router, batches, seed, requests, rps, central=name == "central-queue")
    end_s = max(record.arrival_s + record.total_ms / 1e3 for record in records)
    span_s = end_s - records[0].arrival_s
    output = sum(record.output_tokens for record in records)
    ttfts_ms = sorted(record.ttft_ms for record in records)
    return Cell(
        scheduler=name,
        seed=seed,
        tokens_per_s=(output + sum(record.prompt_tokens for record in records)) / span_s,
        output_tokens_per_s=output / span_s,
        slo_attainment=sum(ttft_ms <= SLO_TTFT_MS for ttft_ms in ttfts_ms) / len(records),
        ttft_ms_p50=percentile(ttfts_ms, 50),
        ttft_ms_p95=percentile(ttfts_ms, 95),
        end_s=end_s,
    )


@functools.cache
def saturation_rps(gpu: Gpu, batch: int, requests: int = PROBE_REQUESTS) -> float:
    """Requests per second that one device serves when it never lacks work: over the middle half of a long queue."""
    engine = {"alone": EngineModel(profile_of(gpu, batch))}
    scheduler = _scheduler(RoundRobin(), {"alone": requests})
    result = simulate(load(0, requests, _PROBE_RPS).arrivals(model=MODEL), engine, scheduler, until_s=math.inf)
    ends = sorted(record.total_ms / 1e3 for record in result.records)
    first, last = requests // 4, 3 * requests // 4
    return (last - first) / (ends[last] - ends[first])


def _serve(router: Router, batches: Mapping[str, int], seed: int, requests: int, rps: float, *, central: bool) -> Sequence[RequestRecord]:
    """`central`: requests wait in the gateway's one queue until a slot is free; else at a device that is chosen at their arrival."""
    engines = {name: EngineModel(profile_of(gpu, batches[name])) for name, gpu in DEVICES.items()}
    scheduler = _scheduler(router, batches if central else dict.fromkeys(DEVICES, requests))
    return simulate(load(seed, requests, rps).arrivals(model=MODEL), engines, scheduler, until_s=math.inf).records


def _scheduler(router: Router, windows: Mapping[str, int]) -> Scheduler:
    """First come first served, without fence and guard: the paper's devices have neither."""
    scheduler = Scheduler(
        settings=SchedulerSettings(queue_limit=_MAX_REQUESTS, overdue="keep", fence=False, tpot_guard=0.0),
        instances=[InstanceSpec(name=name, capacity_n_run=n_run) for name, n_run in windows.items()],
        router=router,
        policy="fcfs",
    )
    for name, n_run in windows.items():
        scheduler.set_controls(name, Controls(n_run=n_run))
    return scheduler


def _scheduler_parts(name: str, saturation: Mapping[str, float]) -> tuple[Router, dict[str, int]]:
    """The router and the batch size of each device (4.1, "Baselines", and Eq. 6)."""
    context = mean_context_tokens()
    own = {device: gpu.batch(context) for device, gpu in DEVICES.items()}
    least = min(own.values())
    if name == "uniform":
        return RoundRobin(), dict.fromkeys(DEVICES, least)
    if name == "capacity-proportional":
        memory = {device: gpu.sheet.memory_gb for device, gpu in DEVICES.items()}
        smallest = min(memory.values())
        return WeightedRoundRobin(memory), {device: int(least * gb / smallest) for device, gb in memory.items()}
    if name == "latency-aware":
        return LatencyAware({device: saturation[gpu.name] for device, gpu in DEVICES.items()}), own
    if name == "central-queue":
        return LeastLoaded(), own
    return CapabilityWeighted({device: gpu.sheet for device, gpu in DEVICES.items()}), own


def _row(name: str, cells: Sequence[Cell]) -> dict[str, Any]:
    row: dict[str, Any] = {"scheduler": name}
    for field in ("tokens_per_s", "output_tokens_per_s", "slo_attainment", "ttft_ms_p50", "ttft_ms_p95"):
        values = [getattr(cell, field) for cell in cells]
        row[field] = statistics.fmean(values)
        row[f"{field}_std"] = statistics.pstdev(values)
    if name in PAPER:
        row["paper"] = dict(zip(("tokens_per_s", "slo_attainment", "ttft_ms_p95"), PAPER[name], strict=True))
    return row


def _check(*, seeds: int, requests: int, load_factor: float, rate: float | None, schedulers: Sequence[str], probe_requests: int) -> None:
    if not 1 <= seeds <= _MAX_SEEDS:
        raise ConfigError(f"seeds is {seeds}; allowed: 1 to {_MAX_SEEDS}")
    if not 1 <= requests <= _MAX_REQUESTS:
        raise ConfigError(f"requests is {requests}; allowed: 1 to {_MAX_REQUESTS}")
    if not 8 <= probe_requests <= _MAX_REQUESTS:
        raise ConfigError(f"probe_requests is {probe_requests}; allowed: 8 to {_MAX_REQUESTS}")
    for name, value in (("load_factor", load_factor), ("rate", rate)):
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise ConfigError(f"{name} is {value}; allowed: a finite number more than 0")
    for scheduler in schedulers:
        if scheduler not in SCHEDULERS:
            raise ConfigError(f"scheduler is {scheduler!r}; allowed: {', '.join(SCHEDULERS)}")
