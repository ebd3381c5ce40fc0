"""Weighted fair queueing over tenants."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import (
    ARRIVAL,
    OUTPUT_LENGTH,
    PRIORITY,
    PROMPT_LENGTH,
    SERVED_TOKENS,
    SERVICE_TIME,
    TENANT,
    WEIGHT,
    Signal,
    mypyc_attr,
)
from hmas.controller.scheduling.policy_base.flow import Flow, service_ms_of, tokens_of
from hmas.controller.scheduling.policy_base.flow_policy import FlowPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@mypyc_attr(allow_interpreted_subclasses=True)
class Wfq(FlowPolicy):
    """Tenants share the service by weight, by start-time fair queueing (Goyal, Vin and Cheng, 1996).

    Each tenant has a start tag. Among the tenants with waiting requests the one with the lowest tag goes next, and its tag grows by cost /
    weight of the request taken. Virtual time is the start tag last served; a tenant that comes back after a pause starts there, with no
    claim to what it did not use. Once no request waits, all tenants start level again. While two tenants wait, the service that they get
    per unit of weight differs by no more than one request of each, plus the prediction error of the requests still running. Start tags,
    unlike finish tags, do not depend on the cost of the next request, so re-keying moves nothing between tenants.

    A changed weight applies from the next dispatch on. Within a tenant the client priority comes first (it affects no other tenant), then
    the order of arrival.

    Parameter `cost`: what is shared: 0 tokens (prompt and output), 1 service time T_tot in milliseconds.
    """

    name: ClassVar[str] = "wfq"
    summary: ClassVar[str] = "tenants share by weight; keeps one tenant's burst from taking the service of the others"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({"cost": 0.0})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"cost": (0.0, 1.0)})
    signals: ClassVar[tuple[Signal, ...]] = (
        TENANT,
        WEIGHT,
        PROMPT_LENGTH,
        OUTPUT_LENGTH,
        SERVICE_TIME,
        SERVED_TOKENS,
        PRIORITY,
        ARRIVAL,
    )
    starvation: ClassVar[str] = (
        "none among the tenants there are: of two that wait, service per weight differs by one request of each; by priority within a tenant"
    )
    shares_tenants: ClassVar[bool] = True
    complexity: ClassVar[str] = "push, pop O(log n + log f), re-key and removal O(1)"
    source: ClassVar[str] = "Goyal, Vin and Cheng 1996, start-time fair queueing; H-MAS 3.4.1 and C.2"

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self._by_time = parameters["cost"] >= 0.5

    def _cost(self, entry: QueueEntry, output_tokens: float) -> float:
        return service_ms_of(entry, output_tokens) if self._by_time else tokens_of(entry, output_tokens)

    def _wake(self, flow: Flow, entry: QueueEntry, now_s: float) -> None:  # noqa: ARG002  the base's arguments
        flow.tag = max(flow.tag, self._clock)

    def _restart(self) -> None:
        self.idle.clear()
        self._clock = 0.0
