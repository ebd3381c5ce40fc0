"""Routers: they choose the instance for a request. One router per file; `make_router` is the registry."""

from hmas.controller.core.placement import Choice, InstanceState, Routable, Router
from hmas.controller.routing.least_loaded import LeastLoaded
from hmas.controller.routing.pool import ROUTERS, make_router
from hmas.controller.routing.round_robin import RoundRobin

__all__ = ["ROUTERS", "Choice", "InstanceState", "LeastLoaded", "RoundRobin", "Routable", "Router", "make_router"]
