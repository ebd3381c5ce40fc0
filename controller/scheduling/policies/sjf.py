"""Shortest job first."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, PRIORITY, SERVICE_TIME, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy, priority_offset_s
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@mypyc_attr(allow_interpreted_subclasses=True)
class Sjf(KeyedPolicy):
    """By predicted service time T_tot (H-MAS 3.2), minus an allowance for time waited.

    Parameter `aging_ms_per_s`: milliseconds of service time that one second of waiting makes up for. With a value A, a request with T_tot
    is passed only by shorter ones that come within (T_tot - T_tot') / A seconds after it, so no request waits forever; 0 is pure SJF. As
    the allowance grows equally for all, T_tot + A * arrival gives the same order at every moment and the key stays fixed.

    Client priority moves the service time by one second per step.
    """

    name: ClassVar[str] = "sjf"
    summary: ClassVar[str] = "shortest predicted service first; the most requests per second under overload, at the cost of long ones"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"aging_ms_per_s": 20.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"aging_ms_per_s": (0.0, 10_000.0)})
    signals: ClassVar[tuple[Signal, ...]] = (SERVICE_TIME, ARRIVAL, PRIORITY)
    starvation: ClassVar[str] = "passed only by requests that come within T_tot / aging_ms_per_s of it; starves long ones where that is 0"
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "H-MAS C.2, by T_tot of 3.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._aging_ms_per_s = parameters["aging_ms_per_s"]

    def key(self, entry: QueueEntry) -> float:
        """Milliseconds of service, plus a charge that grows with the arrival time."""
        return entry.estimates.total_ms + 1000.0 * priority_offset_s(entry) + self._aging_ms_per_s * entry.request.arrival_s
