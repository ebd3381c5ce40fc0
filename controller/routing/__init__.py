"""Which instance a request goes to. One router a file; `make_router` is the registry."""

from controller.core.placement import Choice, InstanceState, Routable, Router
from controller.routing.least_loaded import LeastLoaded
from controller.routing.pool import ROUTERS, make_router
from controller.routing.round_robin import RoundRobin

__all__ = ["ROUTERS", "Choice", "InstanceState", "LeastLoaded", "RoundRobin", "Routable", "Router", "make_router"]
