"""Least laxity first."""

from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, FIRST_TOKEN_TIME, PRIORITY, TARGETS, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy, priority_offset_s
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@mypyc_attr(allow_interpreted_subclasses=True)
class Llf(KeyedPolicy):
    """By the latest time at which a request must start for its first token to be in time: a_r + SLO_ttft - t - ttft.

    Laxity is the time to the deadline minus the service still needed (Mok, 1983). The order of dispatch decides when the first token comes,
    so the deadline is that of the first token, and the service is the time up to it: of two requests due at the same moment, the one with
    the longer prompt goes first; EDF treats them alike. While requests wait, the laxity of all shrinks equally, so the latest start a_r +
    SLO_ttft - ttft gives the same order at every moment and the key stays fixed. LLF's known fault, switching back and forth between two
    running jobs, needs pre-emption and cannot occur here.

    `slack` applies the same idea to the whole answer, with D_r and T_tot.

    Client priority moves the laxity by one second per step.
    """

    name: ClassVar[str] = "llf"
    summary: ClassVar[str] = (
        "whoever must start first to be in time (TTFT deadline less predicted prefill); for prompts that differ much in length"
    )
    signals: ClassVar[tuple[Signal, ...]] = (ARRIVAL, TARGETS, FIRST_TOKEN_TIME, PRIORITY)
    starvation: ClassVar[str] = "passed only by requests that must start before it must; priority moves that by at most 200 s"
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "Mok 1983, least slack; H-MAS C.2"

    def key(self, entry: QueueEntry) -> float:
        """The latest start, seconds since the epoch, with the priority's offset."""
        return entry.ttft_deadline_s - entry.estimates.ttft_ms / 1000.0 + priority_offset_s(entry)
