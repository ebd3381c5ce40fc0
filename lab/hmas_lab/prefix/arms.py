"""What is compared: a router, and when the gateway binds a request to an instance."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hmas.controller.core.placement import Router
from hmas.controller.routing.registry import DEFAULT_ROUTER, make_router
from hmas_lab.prefix.routers import CacheAware, ConsistentHash
from hmas_lab.simulated_serving import Serving


class Arm(NamedTuple):
    """One way to serve.

    Attributes:
        words: What it is.
        make: Its router, by the names of the instances.
        serving: As `Serving`.
        exact: Whether the router knows what the engines have cached.
    """

    words: str
    make: Callable[[Collection[str]], Router]
    serving: Serving
    exact: bool = False


def _product(text: str) -> Callable[[Collection[str]], Router]:
    return lambda _names: make_router(text)


ROUND_ROBIN, LEAST, HASH, CACHE_AWARE = "round-robin", "least requests", "consistent_hash", "cache_aware"
PEERS = (ROUND_ROBIN, LEAST, HASH, CACHE_AWARE)
OURS = ("round-robin", "least-loaded", "session-affine", "prefix-aware", DEFAULT_ROUTER)
PRODUCT, EXACT = f"h-mas: {DEFAULT_ROUTER}", f"h-mas: {DEFAULT_ROUTER} (exact)"
ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        ROUND_ROBIN: Arm("each instance in turn, at arrival", _product("round-robin"), "at-arrival"),
        LEAST: Arm("the fewest requests in flight, at arrival", _product("least-loaded"), "at-arrival"),
        HASH: Arm("the session's place on a ring, at arrival (vllm-router, production stack)", ConsistentHash, "at-arrival"),
        CACHE_AWARE: Arm(
            "`cache_aware` with its defaults, at arrival (sglang-router, vllm-router)", lambda _names: CacheAware(), "at-arrival"
        ),
        "fcfs: cache_aware": Arm("the same router on the central queue, first come first served", lambda _names: CacheAware(), "fcfs"),
        f"fcfs: {DEFAULT_ROUTER}": Arm("the product's router on the same queue", _product(DEFAULT_ROUTER), "fcfs"),
        f"fcfs+shed: {DEFAULT_ROUTER}": Arm("the same, which refuses what can no longer be in time", _product(DEFAULT_ROUTER), "shed"),
        **{f"h-mas: {name}": Arm(f"the product as it comes, without agents, with `{name}`", _product(name), "shipped") for name in OURS},
        EXACT: Arm("the same with what the engines have cached, without delay", _product(DEFAULT_ROUTER), "shipped", exact=True),
    }
)
"""Every arm by name."""
