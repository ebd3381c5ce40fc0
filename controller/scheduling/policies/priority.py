"""Priority classes with aging."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.keyed import PRIORITY_LIMIT, KeyedPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.signals import ARRIVAL, PRIORITY, Signal
from hmas.controller.scheduling.policy_base.subclassing import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Priority(KeyedPolicy):
    """Strictly by the client's priority, first come first served within a class; who has waited long enough moves up a class.

    Head-of-the-line priorities with jumps: a request that has stood in its class for `aging_s` joins the end of the next
    better one (Lim and Kobza, 1990). Of two requests the one goes first whose arrival plus `aging_s` for each class is
    earlier: before a jump, whoever is in the better class has come less than that before; after it, both stand in one class by
    when they joined it. So the order is that of a number that never changes, and no request needs moving.

    No class is shut out by a better one: the requests of a better class that pass a given one are those that come within
    `aging_s` times the classes between them after it. Lower numbers are better; beyond 100 either way counts as 100.

    Parameter `aging_s`: seconds in a class before the next better one, the price of a class.
    """

    name: ClassVar[str] = "priority"
    summary: ClassVar[str] = "strict client priority classes, moving up one class per aging_s waited; for paid tiers and background work"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"aging_s": 30.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"aging_s": (0.1, 3600.0)})
    signals: ClassVar[tuple[Signal, ...]] = (PRIORITY, ARRIVAL)
    starvation: ClassVar[str] = "passed only by requests that come within aging_s after it for each class that theirs is better"
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "Lim and Kobza 1990, head of the line with priority jumps; H-MAS C.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._aging_s = parameters["aging_s"]

    def key(self, entry: QueueEntry) -> float:
        """When it joins the middle class (or left it, in better ones), seconds since the epoch."""
        request = entry.request
        return request.arrival_s + self._aging_s * max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, request.priority))
