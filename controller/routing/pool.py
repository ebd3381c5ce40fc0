"""The registry of routers."""

from collections.abc import Mapping
from types import MappingProxyType

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Router
from hmas.controller.routing.least_loaded import LeastLoaded
from hmas.controller.routing.round_robin import RoundRobin

ROUTERS: Mapping[str, type[Router]] = MappingProxyType({LeastLoaded.name: LeastLoaded, RoundRobin.name: RoundRobin})
"""Routers by the name that the configuration uses."""


def make_router(name: str) -> Router:
    """Creates a new router.

    Raises:
        PolicyError: No router has this name.
    """
    if name not in ROUTERS:
        raise PolicyError(f"router {name!r} is unknown; allowed: {', '.join(ROUTERS)}")
    return ROUTERS[name]()
