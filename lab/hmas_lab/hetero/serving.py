"""One arm on one workload: the product's scheduler and routers against the devices, in virtual time."""

import functools
import math
import time
from collections.abc import Mapping, Sequence

import msgspec

from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.core.types import Controls, Estimates, Request
from hmas.controller.routing.turns import RoundRobin
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec
from hmas.controller.simulation import RequestRecord, simulate
from hmas.engines.sim.model import EngineModel
from hmas_lab.hetero.arms import ARMS, Arm, Devices
from hmas_lab.hetero.cluster import GPUS, KV_BYTES_PER_TOKEN, MODEL, Gpu, cluster, profile_of
from hmas_lab.hetero.load import SLO_TTFT_MS, load, mean_context_tokens
from hmas_lab.paper.code import fingerprint
from hmas_lab.simulated_serving import PLAIN, QUEUEING

PROBE_REQUESTS = 4000
_PROBE_RPS = 1e6


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        arm: Of `ARMS`.
        distribution: Of `DISTRIBUTIONS`.
        devices: In the cluster.
        load: Arrival rate over the cluster's saturation with this distribution.
        probe: Requests in the queue by which a device's saturation is measured.
    """

    arm: str
    distribution: str
    devices: int
    load: float
    seed: int
    requests: int
    probe: int = PROBE_REQUESTS


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Attributes:
        code: What the sources were that it was made with.
        figures: `tokens_per_s` are prompt and output tokens of all that was served, from the first arrival to the last end,
            `output_tokens_per_s` the output alone; `slo` is the share of all requests whose first token came within 500 ms; a request that
            was given up has no first token, so that `ttft_ms_p95` is infinite (-1 here) where more than 5 % were given up, and
            `ttft_ms_p95_served` is that of the others; `served` is their share; `rate_rps` the arrivals; `cpu_us` processor time of a
            request, of gateway and simulated devices together.
        by_gpu: Share of the requests by kind of device.
    """

    task: Task
    code: str
    figures: dict[str, float]
    by_gpu: dict[str, float]


def code() -> str:
    """What the sources are."""
    return fingerprint("hetero")


def run_task(data: bytes) -> bytes:
    """One task, encoded, to its row, encoded: a plain function, so that any process can take it."""
    task = msgspec.json.decode(data, type=Task)
    arm, devices = ARMS[task.arm], cluster(task.devices)
    saturation = {gpu.name: saturation_rps(gpu, task.distribution, task.probe) for gpu in GPUS}
    rate_rps = task.load * sum(saturation[gpu.name] for gpu in devices.values())
    begun_s = time.process_time()
    records = _serve(arm, devices, saturation, task, rate_rps)
    cpu_us = 1e6 * (time.process_time() - begun_s) / len(records)
    kinds = [devices[record.instance].name if record.instance else "" for record in records]
    row = Row(
        task=task,
        code=code(),
        figures={**_figures(records), "rate_rps": rate_rps, "cpu_us": cpu_us},
        by_gpu={gpu.name: kinds.count(gpu.name) / len(kinds) for gpu in GPUS},
    )
    return msgspec.json.encode(row)


def _figures(records: Sequence[RequestRecord]) -> dict[str, float]:
    served = [record for record in records if record.ttft_ms >= 0.0]
    ttfts_ms = sorted(record.ttft_ms for record in served)
    span_s = max(record.arrival_s + record.total_ms / 1e3 for record in served) - records[0].arrival_s
    output = sum(record.output_tokens for record in served)
    all_ms = [*ttfts_ms, *[math.inf] * (len(records) - len(served))]
    p95_ms = percentile(all_ms, 95)
    return {
        "tokens_per_s": (output + sum(record.prompt_tokens for record in served)) / span_s,
        "output_tokens_per_s": output / span_s,
        "slo": sum(ttft_ms <= SLO_TTFT_MS for ttft_ms in ttfts_ms) / len(records),
        "served": len(served) / len(records),
        "ttft_ms_p50": percentile(ttfts_ms, 50),
        "ttft_ms_p95": p95_ms if math.isfinite(p95_ms) else -1.0,
        "ttft_ms_p95_served": percentile(ttfts_ms, 95),
    }


@functools.cache
def saturation_rps(gpu: Gpu, distribution: str, requests: int = PROBE_REQUESTS) -> float:
    """Requests per second that one device serves when it never lacks work: over the middle half of a long queue."""
    engine = {"alone": EngineModel(profile_of(gpu, gpu.batch(mean_context_tokens(distribution))))}
    scheduler = Scheduler(
        settings=PLAIN, instances=[InstanceSpec(name="alone", capacity_n_run=requests)], router=RoundRobin(), policy="fcfs"
    )
    scheduler.set_controls("alone", Controls(n_run=requests))
    result = simulate(load(distribution, 0, requests, _PROBE_RPS).arrivals(model=MODEL), engine, scheduler, until_s=math.inf)
    ends = sorted(record.total_ms / 1e3 for record in result.records)
    first, last = requests // 4, 3 * requests // 4
    return (last - first) / (ends[last] - ends[first])


def _serve(arm: Arm, devices: Devices, saturation: Mapping[str, float], task: Task, rate_rps: float) -> Sequence[RequestRecord]:
    batches = batches_of(arm, devices, mean_context_tokens(task.distribution))
    windows = dict.fromkeys(devices, task.requests) if arm.serving == "at-arrival" else batches
    engines = {
        name: EngineModel(profile_of(gpu, batches[name]), preemption="swap" if arm.swaps else "recompute") for name, gpu in devices.items()
    }
    scheduler = Scheduler(
        settings=QUEUEING[arm.serving].settings,
        instances=[
            InstanceSpec(
                name=name,
                capacity_n_run=windows[name],
                # The paper's shares are by HBM as it is sold; otherwise what the device reports of its cache counts.
                kv_capacity_tokens=int(gpu.sheet.memory_gb * 1000) if arm.batches == "memory" else 0,
                kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            )
            for name, gpu in devices.items()
        ],
        router=arm.make(devices, saturation),
        policy=QUEUEING[arm.serving].policy,
    )
    for name, n_run in windows.items():
        scheduler.set_controls(name, Controls(n_run=n_run))
    history = History()

    def estimate(request: Request, _now_s: float) -> Estimates:
        return history.estimate(request)

    def on_end(ended: Ended, now_s: float) -> None:
        history.learn(completion_of(ended, now_s))

    arrivals = load(task.distribution, task.seed, task.requests, rate_rps).arrivals(model=MODEL, estimate=estimate)
    return simulate(arrivals, engines, scheduler, on_end=on_end, until_s=math.inf).records


def batches_of(arm: Arm, devices: Devices, context_tokens: float) -> dict[str, int]:
    """The batch size of each device (4.1, "Baselines", and Eq. 6)."""
    own = {name: gpu.batch(context_tokens) for name, gpu in devices.items()}
    if arm.batches == "own":
        return own
    least, smallest = min(own.values()), min(gpu.sheet.memory_gb for gpu in devices.values())
    if arm.batches == "least":
        return dict.fromkeys(devices, least)
    return {name: int(least * gpu.sheet.memory_gb / smallest) for name, gpu in devices.items()}
