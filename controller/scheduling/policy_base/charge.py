"""What a flow was charged for one dispatch."""

import msgspec

from hmas.controller.scheduling.policy_base.flow import Flow, State


class Charge(msgspec.Struct, gc=False):
    """One pop of a discipline that shares out among flows: remembered until the request ends, to be undone or corrected.

    Thousands are kept, and none can be part of a cycle, so the garbage collector need not walk them.

    Attributes:
        flow: Whose pop it was.
        amount: What it cost per unit of weight.
        weight: The weight it was divided by.
        before, after: The flow's account before and after.
        clock_before, clock_after: The time that all flows share, before and after.
    """

    flow: Flow
    amount: float
    weight: float
    before: State
    after: State
    clock_before: float
    clock_after: float
