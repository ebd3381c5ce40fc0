"""How a simulated gateway serves in comparisons of routers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.controller.scheduling.settings import SHIPPED, SchedulerSettings

Serving = Literal["at-arrival", "fcfs", "shed", "bound", "shipped"]
"""When a request is bound to an instance, and in which order.

- `at-arrival`: it is sent to an instance when it arrives, and waits in the engine's own queue.
- `fcfs`: it waits in the gateway's queue, first come first served, until an instance has room for it in batch and KV cache.
- `shed`: the same, and what can no longer have its first token in time is refused.
- `bound`: the product as it comes, without agents, with `scheduler.binding: arrival`: it waits in the gateway's queue of its instance.
- `shipped`: the product as it comes, without agents (deadline order, KV fence, TPOT guard).
"""


class Queueing(NamedTuple):
    """What a way to serve comes to."""

    settings: SchedulerSettings
    policy: str


PLAIN = SchedulerSettings(queue_limit=10_000_000, overdue="keep", fence=False, tpot_guard=0.0)
"""First come first served, without fence and guard."""
QUEUEING: Mapping[Serving, Queueing] = MappingProxyType(
    {
        "at-arrival": Queueing(PLAIN, "fcfs"),
        "fcfs": Queueing(msgspec.structs.replace(PLAIN, fence=True), "fcfs"),
        "shed": Queueing(msgspec.structs.replace(PLAIN, fence=True, overdue="shed"), "fcfs"),
        "bound": Queueing(msgspec.structs.replace(SHIPPED, queue_limit=PLAIN.queue_limit, binding="arrival"), DEFAULT_POLICY),
        "shipped": Queueing(msgspec.structs.replace(SHIPPED, queue_limit=PLAIN.queue_limit), DEFAULT_POLICY),
    }
)
