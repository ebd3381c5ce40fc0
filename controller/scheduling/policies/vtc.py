"""The virtual token counter."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import (
    ARRIVAL,
    OUTPUT_LENGTH,
    PRIORITY,
    PROMPT_LENGTH,
    SERVED_TOKENS,
    TENANT,
    WEIGHT,
    Signal,
    mypyc_attr,
)
from hmas.controller.scheduling.policy_base.flow import Flow
from hmas.controller.scheduling.policy_base.flow_policy import FlowPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.recall import Charge


@mypyc_attr(allow_interpreted_subclasses=True)
class Vtc(FlowPolicy):
    """Tenants by the tokens they have been served, the fewest per weight first (Sheng et al., 2024).

    Each tenant has a counter of prompt tokens plus `output_weight` times output tokens, over its weight. This is the variant with length
    prediction: a dispatch is charged its predicted output at once, and corrected to the true one when the request has ended. The plain
    variant, which charges each token as it is produced, would depend on data that only the live gateway has at that moment.

    A tenant that comes back is lifted to the lowest counter of the waiting tenants or, if none waits, to the counter of the tenant that
    stopped waiting last: a pause earns no credit. Unlike under `wfq`, an idle moment does not level the counters: a higher counter stays as
    it is.

    Within a tenant the client priority comes first, then arrival.

    Parameter `output_weight`: the cost of an output token in prompt tokens.
    """

    name: ClassVar[str] = "vtc"
    summary: ClassVar[str] = "tenants share weighted prompt and output tokens; fair over a whole day, also across quiet moments"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"output_weight": 2.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"output_weight": (0.0, 100.0)})
    signals: ClassVar[tuple[Signal, ...]] = (TENANT, WEIGHT, PROMPT_LENGTH, OUTPUT_LENGTH, SERVED_TOKENS, PRIORITY, ARRIVAL)
    starvation: ClassVar[str] = (
        "none among the tenants there are: of two that wait, counters differ by one request of each; by priority within a tenant"
    )
    shares_tenants: ClassVar[bool] = True
    complexity: ClassVar[str] = "push, pop O(log n + log f), re-key and removal O(1)"
    source: ClassVar[str] = "Sheng et al., OSDI 2024, Algorithm 2 and its variant with length prediction"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._output_weight = parameters["output_weight"]

    def _cost(self, entry: QueueEntry, output_tokens: float) -> float:
        return max(1.0, entry.request.prompt_tokens + self._output_weight * output_tokens)

    def _wake(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        lowest = self._turns.lowest_tag()
        flow.tag = max(flow.tag, self._clock if lowest is None else lowest)

    def _take(self, flow: Flow, amount: float, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        flow.tag += amount

    def _undone(self, flow: Flow, charge: Charge) -> None:
        """Corrects the counter that was kept when the flow was closed after this pop; else it would rise by the charge each time."""
        if flow.name in self._closed and self._clock == charge.after[0]:
            self._clock = flow.tag

    def _sleep(self, flow: Flow) -> None:
        self._clock = flow.tag
