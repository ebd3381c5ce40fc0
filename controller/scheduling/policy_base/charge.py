"""The charge of a flow for one dispatch."""

import msgspec

from hmas.controller.scheduling.policy_base.flow import Flow, State


class Charge(msgspec.Struct, gc=False):
    """One pop of a policy that shares service among flows, kept until the request ends so that it can be undone or corrected.

    Thousands are kept, and none can be part of a reference cycle, so the garbage collector need not track them.

    Attributes:
        flow: The flow of the popped entry.
        amount: The cost per unit of weight.
        weight: The weight that the cost was divided by.
        before, after: The flow's account before and after the pop.
        clock_before, clock_after: The clock that all flows share, before and after the pop.
    """

    flow: Flow
    amount: float
    weight: float
    before: State
    after: State
    clock_before: float
    clock_after: float
