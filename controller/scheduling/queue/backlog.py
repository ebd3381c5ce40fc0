"""The waiting requests by rank and by amount of work: which one is given up first, and how much work is ahead of a new one."""

from collections import OrderedDict

from hmas.controller.core.types import Request
from hmas.controller.scheduling.policy_base.keyed import PRIORITY_LIMIT
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.drain_rate import QueuedWork

_IMPORTANCE_STEPS = 20
"""Importance counts in steps of 1/20: a tiny difference is no reason to give up a waiting request."""

Rank = tuple[int, int, bool]
"""Priority (lower goes first), steps below full importance, and whether it is overdue: the greatest rank is given up first."""


def rank_of(request: Request, importance: float, *, overdue: bool) -> Rank:
    """A request's rank; importance is 0 to 1."""
    priority = request.priority
    if priority:
        priority = max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, priority))
    return priority, int(_IMPORTANCE_STEPS * (1.0 - importance) + 0.5), overdue


class _Counted:
    """What a request is counted with."""

    __slots__ = ("rank", "work", "work_us")

    def __init__(self, rank: Rank, work: QueuedWork, work_us: int) -> None:
        self.rank = rank
        self.work = work
        self.work_us = work_us


class Backlog:
    """Every waiting request, in a table per rank, the newest last. O(1) a call; `worst` is O(ranks in use)."""

    __slots__ = ("_by_rank", "_counted", "_makes_way")

    def __init__(self, *, makes_way: bool = True) -> None:
        """Starts empty. `makes_way`: whether requests that become overdue let all others go first."""
        self._makes_way = makes_way
        self._counted: dict[str, _Counted] = {}
        self._by_rank: dict[Rank, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._counted)

    def put(self, entry: QueueEntry, work: QueuedWork, *, overdue: bool) -> None:
        """Adds a request, or moves it to the rank of its current estimates. `work`: that of the requests waiting for the same instances."""
        request_id = entry.request.id
        self._take(request_id, left=overdue and self._makes_way)
        rank = rank_of(entry.request, entry.estimates.importance, overdue=overdue)
        counted = self._counted[request_id] = _Counted(rank, work, max(1, int(1000.0 * entry.estimates.total_ms)))
        alike = self._by_rank.get(rank)
        if alike is None:
            alike = self._by_rank[rank] = OrderedDict()
        alike[request_id] = None
        if not (overdue and self._makes_way):
            work.ready_us += counted.work_us

    def move(self, request_id: str, work: QueuedWork) -> None:
        """Counts the request for other instances from now on; no effect if it is not here."""
        counted = self._counted.get(request_id)
        if counted is None:
            return
        before, counted.work = counted.work, work
        if not (counted.rank[2] and self._makes_way):
            before.ready_us -= counted.work_us
            work.ready_us += counted.work_us

    def discard(self, request_id: str) -> None:
        """Removes a request that no longer waits; no effect if it is not here."""
        self._take(request_id, left=True)

    def worst(self) -> tuple[Rank, str] | None:
        """The request that would be given up first: the newest one of the greatest rank; None if none waits."""
        if not self._by_rank:
            return None
        rank = max(self._by_rank)
        return rank, next(reversed(self._by_rank[rank]))

    def _take(self, request_id: str, *, left: bool) -> None:
        """Removes a request, if it is here. `left`: its work has left the queue."""
        counted = self._counted.pop(request_id, None)
        if counted is None:
            return
        alike = self._by_rank[counted.rank]
        del alike[request_id]
        if not alike:
            del self._by_rank[counted.rank]
        if not (counted.rank[2] and self._makes_way):
            counted.work.ready_us -= counted.work_us
            if left:
                counted.work.left_us += counted.work_us
