"""Shortest remaining time first."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import FIRST_TOKEN_TIME, PRIORITY, RETRIED, SERVICE_TIME, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy, priority_offset_s
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@mypyc_attr(allow_interpreted_subclasses=True)
class Srtf(KeyedPolicy):
    """By the service still needed, with no allowance for time waited.

    A gateway cannot take a request back from an engine that works on it, so the remaining time of a waiting request is its whole T_tot, and
    the order is that of SJF without aging: it gives the lowest possible mean time (Schrage, 1968), and long requests starve while shorter
    ones keep coming. A request comes back only if its instance failed it before its first token. Its remaining time is then T_tot minus
    what need not be done again: nothing if each engine has its own KV cache, up to the whole prefill if engines share one.

    Parameter `kept_prefill`: the share of the predicted time to the first token that a request which comes back is spared.

    Client priority moves the remaining time by one second per step.
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
