"""What a policy remembers of the entries it handed out, so that a pop can be undone and a charge corrected."""

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec

from hmas.controller.scheduling.policy_base.flow import Flow, State

T = TypeVar("T")


class Recall(Generic[T]):
    """Notes on the last pops, by request id; the oldest are forgotten first.

    Once its pop is forgotten, an entry counts as new when it is put back, and keeps its charge when it ends.
    """

    __slots__ = ("_keep", "_notes")

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._notes: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, request_id: str, note: T) -> None:
        """Remembers a pop."""
        notes = self._notes
        notes[request_id] = note
        if len(notes) > self._keep:
            notes.popitem(last=False)

    def take(self, request_id: str) -> T | None:
        """Removes the note of a pop and returns it, None if there is none."""
        return self._notes.pop(request_id, None)


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
