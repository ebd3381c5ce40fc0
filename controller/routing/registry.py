"""The registry of routers, which choose the instance for a request. One router per file."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Router
from hmas.controller.routing.least_loaded import LeastLoaded
from hmas.controller.routing.round_robin import RoundRobin

DEFAULT_ROUTER = LeastLoaded.name
_routers: dict[str, type[Router]] = {LeastLoaded.name: LeastLoaded, RoundRobin.name: RoundRobin}
ROUTERS: Mapping[str, type[Router]] = MappingProxyType(_routers)
"""Routers by the name that the configuration uses: the built-in ones, then those of plugins."""


def add_router(name: str, router: Any) -> None:
    """Adds a plugin's router; called only at the start of a process (`hmas.controller.config.plugins`).

    Raises:
        PolicyError: It is not a class that can be made without arguments and has a method `choose`.
    """
    if not isinstance(router, type) or not callable(getattr(router, "choose", None)):
        raise PolicyError(f"{router!r} is no router; allowed: a class with the methods of hmas.controller.core.placement.Router")
    router()
    _routers[name] = router


def make_router(name: str) -> Router:
    """Creates a new router.

    Raises:
        PolicyError: No router has this name.
    """
    if name not in ROUTERS:
        raise PolicyError(f"router {name!r} is unknown; allowed: {', '.join(ROUTERS)}")
    return ROUTERS[name]()
