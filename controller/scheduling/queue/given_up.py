"""Tracks whether overdue requests are served in the end or given up. Pure.

To let a request wait until it is late has a price, its missed target, and a gain only if its work is then never done. If engines can do all
the work that comes, overdue requests are served in the next lull, and nothing is gained.
"""

from collections import deque

_NEWEST = 32
_SHARE = 0.2


class GivenUp:
    """The outcomes of a queue's newest overdue requests.

    Attributes:
        spares_work: Whether more than a fifth of the newest 32 were dropped: then the engines have more work than they can do.
    """

    __slots__ = ("_dropped", "spares_work")

    def __init__(self) -> None:
        self._dropped: deque[bool] = deque(maxlen=_NEWEST)
        self.spares_work = False

    def ended(self, *, dropped: bool) -> None:
        """Records that an overdue request was dispatched, or was dropped unserved."""
        self._dropped.append(dropped)
        self.spares_work = sum(self._dropped) > _SHARE * len(self._dropped)
