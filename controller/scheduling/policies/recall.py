"""What a policy noted about the entries it handed out last, so that `put_back` can undo a pop exactly."""

from collections import OrderedDict
from dataclasses import dataclass

_KEEP = 64
"""More than any look-ahead past entries that the fence holds back; beyond it a returned entry counts as newly come."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One pop.

    Attributes:
        flow: Lane or tenant that was served.
        start: Its start tag when it was served.
        charge: What was added to that tag.
        virtual: Virtual time before the pop.
    """

    flow: str
    start: float
    charge: float
    virtual: float


class Recall:
    """Tickets of the last 64 pops, by request id."""

    __slots__ = ("_tickets",)

    def __init__(self) -> None:
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()

    def note(self, request_id: str, ticket: Ticket) -> None:
        """Remembers a pop."""
        self._tickets[request_id] = ticket
        if len(self._tickets) > _KEEP:
            self._tickets.popitem(last=False)

    def take(self, request_id: str) -> Ticket | None:
        """Forgets a pop and returns it, None where it is too long ago."""
        return self._tickets.pop(request_id, None)
