"""The simulation of a cluster in virtual time: the scheduler and routers of the live gateway and the engine models, driven by events."""

from hmas.controller.simulation.arrivals import Arrival
from hmas.controller.simulation.kernel import Periodic, simulate
from hmas.controller.simulation.result import RequestRecord, SimulationResult

__all__ = ["Arrival", "Periodic", "RequestRecord", "SimulationResult", "simulate"]
