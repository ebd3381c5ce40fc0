"""Shortest remaining time first."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy, priority_offset_s
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.signals import FIRST_TOKEN_TIME, PRIORITY, RETRIED, SERVICE_TIME, Signal
from hmas.controller.scheduling.policy_base.subclassing import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Srtf(KeyedPolicy):
    """By the service still needed, with nothing off for having waited.

    A gateway takes no request back from an engine that works on it, so the remaining time of one that waits is its whole
    T_tot, and the order is that of SJF without aging: the lowest mean time there is (Schrage, 1968), and long requests starve
    while shorter ones keep coming. The one request that comes back has been failed by its instance before its first token.
    What is left of it is its T_tot less what need not be done again: nothing where each engine keeps its KV cache to itself,
    up to its whole prefill where engines share one.

    Parameter `kept_prefill`: the share of the predicted time to the first token that a request which comes back is spared.

    Client priority moves the remaining time by one second a step.
    """

    name: ClassVar[str] = "srtf"
    summary: ClassVar[str] = "shortest remaining service first; sjf without aging, but for requests that come back where KV cache is shared"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"kept_prefill": 0.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"kept_prefill": (0.0, 1.0)})
    signals: ClassVar[tuple[Signal, ...]] = (SERVICE_TIME, FIRST_TOKEN_TIME, RETRIED, PRIORITY)
    starvation: ClassVar[str] = "starves: long requests, for as long as shorter ones keep the engines busy"
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "Schrage 1968; H-MAS C.2, by T_tot of 3.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._kept_prefill = parameters["kept_prefill"]

    def key(self, entry: QueueEntry) -> float:
        """Milliseconds of service still needed, with the priority's offset."""
        estimates = entry.estimates
        kept_ms = self._kept_prefill * estimates.ttft_ms if entry.tried else 0.0
        return estimates.total_ms - kept_ms + 1000.0 * priority_offset_s(entry)
