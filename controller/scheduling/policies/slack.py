"""Least slack first, by H-MAS Eq. 5."""

from typing import ClassVar

from hmas.controller.scheduling.policy_base.declaration import ARRIVAL, OUTPUT_LENGTH, PRIORITY, SERVICE_TIME, TARGETS, Signal, mypyc_attr
from hmas.controller.scheduling.policy_base.keyed import KeyedPolicy, priority_offset_s
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


def slack_key_s(entry: QueueEntry) -> float:
    """S_r of Eq. 5 without V_sys, in seconds, with the client priority's offset: it gives the same order at any moment."""
    return entry.latest_start_s + priority_offset_s(entry)


@mypyc_attr(allow_interpreted_subclasses=True)
class Slack(KeyedPolicy):
    """By S_r = D_r - V_sys - T_tot (Eq. 5), the lowest first, over all waiting requests; `two-lane` does it within each lane.

    D_r = a_r + SLO_ttft + SLO_tpot * l_pred and T_tot = ttft + tpot * l_pred belong to the request. V_sys is the current delay estimate of
    the system in the paper's text and its virtual time in the paper's Table 3; under either reading it is one number for all waiting
    requests at any moment. So it drops out of every comparison, and D_r - T_tot gives the same order at every moment. Written out that is
    a_r + (SLO_ttft - ttft) + (SLO_tpot - tpot) * l_pred: the laxity of the first token, as in `llf`, plus the time that the predicted pace
    has to spare for each token to come. A long answer with a predicted pace faster than its target has much slack; if its pace is slower
    than its target, a longer answer has less slack and goes first.

    Client priority moves the slack by one second per step.
    """

    name: ClassVar[str] = "slack"
    summary: ClassVar[str] = "least slack over the whole answer first (Eq. 5); for TPOT targets that differ, where predictions hold"
    signals: ClassVar[tuple[Signal, ...]] = (ARRIVAL, TARGETS, OUTPUT_LENGTH, SERVICE_TIME, PRIORITY)
    starvation: ClassVar[str] = (
        "passed only by requests with an earlier D_r - T_tot; as lengths are bounded, by none that comes late enough"
    )
    complexity: ClassVar[str] = "push, pop, re-key O(log n), removal O(1)"
    source: ClassVar[str] = "H-MAS 3.5, Eq. 5"

    def key(self, entry: QueueEntry) -> float:
        """See `slack_key_s`."""
        return slack_key_s(entry)
