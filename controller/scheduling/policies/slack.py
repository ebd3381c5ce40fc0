"""Least slack first, by H-MAS Eq. 5."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy, priority_offset_s
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.signals import ARRIVAL, OUTPUT_LENGTH, PRIORITY, SERVICE_TIME, TARGETS, Signal
from hmas.controller.scheduling.policy_base.subclassing import mypyc_attr


def slack_key_s(entry: QueueEntry) -> float:
    """S_r of Eq. 5 without V_sys, seconds, with the client priority's offset: what orders, at any moment."""
    return entry.deadline_s - entry.estimates.total_ms / 1000.0 + priority_offset_s(entry)


@mypyc_attr(allow_interpreted_subclasses=True)
class Slack(KeyedPolicy):
    """By S_r = D_r - V_sys - T_tot (Eq. 5), the lowest first, over all that wait; `two-lane` does it within each lane.

    D_r = a_r + SLO_ttft + SLO_tpot * l_pred and T_tot = ttft + tpot * l_pred belong to the request. V_sys, in the text the
    current delay estimate of the system, in the paper's Table 3 its virtual time, is one number for all that wait at a
    moment, under either reading. So it drops out of every comparison, and D_r - T_tot orders the same at every moment. Written
    out that is a_r + (SLO_ttft - ttft) + (SLO_tpot - tpot) * l_pred: the laxity of the first token, as `llf` has it, and for
    each token to come what its pace has to spare. A long answer at a pace with room has much slack; one whose predicted pace
    is slower than its target has the less the longer it is, and is put first.

    Client priority moves the slack by one second a step.
    """

    name: ClassVar[str] = "slack"
    summary: ClassVar[str] = "least slack over the whole answer first (Eq. 5); for TPOT targets that differ, where predictions hold"
    default_parameters: ClassVar[Mapping[str, float]] = MappingProxyType({})
    parameter_ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({})
    signals: ClassVar[tuple[Signal, ...]] = (ARRIVAL, TARGETS, OUTPUT_LENGTH, SERVICE_TIME, PRIORITY)
    starvation: ClassVar[str] = (
        "passed only by requests with an earlier D_r - T_tot; as lengths are bounded, by none that comes late enough"
    )
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "H-MAS 3.5, Eq. 5"

    def key(self, entry: QueueEntry) -> float:
        """See `slack_key_s`."""
        return slack_key_s(entry)
