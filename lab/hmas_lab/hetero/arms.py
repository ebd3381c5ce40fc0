"""What is compared: a dispatcher, when it binds a request to a device, the batch sizes, and what else the gateway does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hmas.controller.core.placement import Router
from hmas.controller.routing.registry import DEFAULT_ROUTER, make_router
from hmas.controller.routing.scorers.capability import DAMPING
from hmas_lab.hetero.cluster import Gpu
from hmas_lab.hetero.routers import EPOCH_S, Capability, CapabilityWeighted, LatencyAware, Oracle
from hmas_lab.simulated_serving import Serving

Devices = Mapping[str, Gpu]
Make = Callable[[Devices, Mapping[str, float]], Router]
"""Makes a router from the devices and their saturation in requests per second, by the name of their kind."""


@dataclass(frozen=True)
class Arm:
    """One way to serve.

    Attributes:
        words: What it is.
        make: Its router.
        batches: Of the devices: the `least` of all everywhere, in proportion to `memory`, or each its `own` by Eq. 6.
        swaps: Whether a device that runs out of KV cache swaps at the paper's 2 s/GB, and does not compute the evicted request again.
    """

    words: str
    make: Make
    serving: Serving = "at-arrival"
    batches: Literal["least", "memory", "own"] = "own"
    swaps: bool = False


def _product(text: str) -> Make:
    return lambda _devices, _saturation: make_router(text)


def _published(*, damping: float = DAMPING, epoch_s: float = EPOCH_S) -> Make:
    return lambda devices, _saturation: CapabilityWeighted(_sheets(devices), damping=damping, epoch_s=epoch_s)


def _sheets(devices: Devices) -> dict[str, Capability]:
    return {name: gpu.sheet for name, gpu in devices.items()}


def _latency(epoch_s: float) -> Make:
    return lambda devices, saturation: LatencyAware({name: saturation[gpu.name] for name, gpu in devices.items()}, epoch_s)


def _long_on_h100(devices: Devices, _saturation: Mapping[str, float]) -> Router:
    fastest = max(gpu.sheet.tflops for gpu in devices.values())
    long_on = [name for name, gpu in devices.items() if gpu.sheet.tflops == fastest]
    return CapabilityWeighted(_sheets(devices), long_on=long_on)


def _oracle(devices: Devices, _saturation: Mapping[str, float]) -> Router:
    return Oracle(_sheets(devices))


UNIFORM, CAPACITY, LATENCY, ORACLE, PUBLISHED = "uniform", "capacity-proportional", "latency-aware", "oracle", "capability-weighted"
LATENCY_NOW, PUBLISHED_NOW, PUBLISHED_LONG = (
    "latency-aware (queues of now)",
    "capability-weighted (queues of now)",
    "capability-weighted (long on H100)",
)
NO_FEEDBACK, EVICTING = "capability-weighted (no feedback)", "capability-weighted (eviction 2 s/GB)"
ROUTERS = (
    "round-robin",
    "capacity-proportional",
    "latency-aware",
    "capability-weighted",
    "workload-balanced",
    "least-loaded",
    DEFAULT_ROUTER,
)
FCFS, SHIPPED = {name: f"fcfs: {name}" for name in ROUTERS}, {name: f"h-mas: {name}" for name in ROUTERS}
BOUND = {name: f"h-mas (bound at arrival): {name}" for name in ("round-robin", "workload-balanced", DEFAULT_ROUTER)}
PRODUCT, SHEDDING = SHIPPED[DEFAULT_ROUTER], f"fcfs+shed: {DEFAULT_ROUTER}"
ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        UNIFORM: Arm("the product's `round-robin`, the least batch everywhere", _product("round-robin"), batches="least"),
        CAPACITY: Arm(
            "the product's `capacity-proportional`, by HBM, and batches by HBM", _product("capacity-proportional"), batches="memory"
        ),
        LATENCY: Arm("requests without a first token over measured throughput, as they were up to 100 ms ago", _latency(EPOCH_S)),
        ORACLE: Arm("knows lengths: prompts beyond 2,048 to the H100, others by bandwidth, whatever the queues", _oracle),
        PUBLISHED: Arm("HeteroServe, Eq. 2 to 6, from data sheets and queues as they were up to 100 ms ago", _published()),
        LATENCY_NOW: Arm("the same as `latency-aware` with the queues as they are", _latency(0.0)),
        PUBLISHED_NOW: Arm("the same as `capability-weighted` with the queues as they are", _published(epoch_s=0.0)),
        PUBLISHED_LONG: Arm("the same as `capability-weighted`, prompts beyond 2,048 tokens only to the H100 (4.4)", _long_on_h100),
        NO_FEEDBACK: Arm("the same as `capability-weighted` without Eq. 5", _published(damping=0.0)),
        EVICTING: Arm(
            "the same as `capability-weighted` on devices that swap at 2 s/GB when the KV cache is full", _published(), swaps=True
        ),
        **{
            arm: Arm(f"the product's `{name}`, central queue, first come first served", _product(name), "fcfs")
            for name, arm in FCFS.items()
        },
        SHEDDING: Arm(f"the same with `{DEFAULT_ROUTER}`, which refuses what can no longer be in time", _product(DEFAULT_ROUTER), "shed"),
        **{arm: Arm(f"the product with `{name}`, which chooses at arrival", _product(name), "bound") for name, arm in BOUND.items()},
        **{arm: Arm(f"the product as it comes with `{name}`", _product(name), "shipped") for name, arm in SHIPPED.items()},
    }
)
"""Every arm by name."""
