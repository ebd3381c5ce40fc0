"""First come, first served."""

from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@mypyc_attr(allow_interpreted_subclasses=True)
class Fcfs(KeyedPolicy):
    """By arrival alone: estimates, deadlines and priorities do not count. The plain baseline and the fallback of the bypass (H-MAS C.2)."""

    name: ClassVar[str] = "fcfs"
    summary: ClassVar[str] = "first come, first served; needs no estimates, the safe fallback"
    signals: ClassVar[tuple[Signal, ...]] = (ARRIVAL,)
    starvation: ClassVar[str] = "none: a request is passed by nobody who came after it"
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "H-MAS C.2, the availability baseline"

    def key(self, entry: QueueEntry) -> float:
        """The arrival number."""
        return float(entry.seq)
