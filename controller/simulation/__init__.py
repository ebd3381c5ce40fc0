"""The cluster in virtual time: the very scheduler, routers and engine models that serve, driven by an event heap."""

from hmas.controller.simulation.arrivals import Arrival
from hmas.controller.simulation.kernel import Periodic, simulate
from hmas.controller.simulation.result import RequestRecord, SimulationResult

__all__ = ["Arrival", "Periodic", "RequestRecord", "SimulationResult", "simulate"]
