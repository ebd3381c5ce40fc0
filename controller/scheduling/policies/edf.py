"""Earliest deadline first."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, OUTPUT_LENGTH, PRIORITY, TARGETS, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy, priority_offset_s
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@mypyc_attr(allow_interpreted_subclasses=True)
class Edf(KeyedPolicy):
    """By deadline. Parameter `key`: 0 the TTFT deadline a_r + SLO_ttft, 1 the whole D_r = a_r + SLO_ttft + SLO_tpot * l_pred (H-MAS 3.5).

    The order of dispatch decides when a request's first token comes; how fast the rest follows depends on how many requests run at once,
    which the window controls. D_r grows with the predicted length, so ordering by it puts a long answer with an urgent first token behind a
    short one with time to spare. Therefore the TTFT deadline is the default and D_r is an option.

    Client priority moves the deadline by one second per step.
    """

    name: ClassVar[str] = "edf"
    summary: ClassVar[str] = "earliest deadline first; saves the most when targets differ and the queue can be served in time"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"key": 0.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"key": (0.0, 1.0)})
    signals: ClassVar[tuple[Signal, ...]] = (ARRIVAL, TARGETS, OUTPUT_LENGTH, PRIORITY)
    starvation: ClassVar[str] = "passed only by requests that come before its deadline, moved by at most 200 s of priority"
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "Liu and Layland 1973, section 7; H-MAS 3.5 and C.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._whole = parameters["key"] >= 0.5

    def key(self, entry: QueueEntry) -> float:
        """The deadline, seconds since the epoch, with the priority's offset."""
        deadline_s = entry.deadline_s if self._whole else entry.ttft_deadline_s
        return deadline_s + priority_offset_s(entry)
