"""Priority classes with aging."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, PRIORITY, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.keyed import PRIORITY_LIMIT, KeyedPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@mypyc_attr(allow_interpreted_subclasses=True)
class Priority(KeyedPolicy):
    """Strictly by client priority, first come first served within a class; a request that has waited long enough moves up a class.

    Head-of-the-line priorities with jumps: a request that has been in its class for `aging_s` joins the end of the next better one (Lim and
    Kobza, 1990). Of two requests the one with the earlier arrival plus `aging_s` per class goes first: before a jump, the request in the
    better class has arrived less than that time after the other; after the jump, both are in one class, ordered by when they joined it. So
    the key is a number that never changes, and no request needs to be moved.

    A better class never shuts out a worse one: a request is passed only by those requests of a better class that arrive within `aging_s`
    times the number of classes between them. Lower numbers are better; values beyond 100 either way count as 100.

    Parameter `aging_s`: seconds in a class before a request joins the next better one, the price of a class.
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
        """When the request joins the middle class (or left it, in better classes), seconds since the epoch."""
        request = entry.request
        return request.arrival_s + self._aging_s * max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, request.priority))
