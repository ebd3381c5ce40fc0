"""The waiting requests by rank and by amount of work: which one is given up first, and how long the queue is in service time."""

from hmas.controller.core.types import Request
from hmas.controller.scheduling.policy_base.keyed import PRIORITY_LIMIT
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.sharded_dict import ShardedDict
from hmas.controller.scheduling.queue.drain_rate import DrainRate

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


class QueuedWork:
    """The work of all requests that wait for the same instances, and how fast it leaves. `Backlog` updates it.

    Work is the service-time proxy T_tot, in whole microseconds, so that sums are exact.

    Attributes:
        ready_us: Work ahead of a request that comes now: that of requests in time, and that of overdue ones if those keep their place.
        left_us: Work that has left since the start: dispatched, ended or, if overdue requests make way, become overdue. It never falls.
    """

    __slots__ = ("_pace", "left_us", "ready_us")

    def __init__(self) -> None:
        self.ready_us = 0
        self.left_us = 0
        self._pace = DrainRate()

    def sample(self, now_s: float) -> None:
        """Samples how much work has left; called at regular intervals and after each dispatch."""
        self._pace.sample(now_s, self.left_us, waiting=self.ready_us > 0)

    def per_second(self, now_s: float) -> float:
        """The recent rate at which work left, in microseconds of work per second."""
        return self._pace.per_second(now_s, self.left_us)

    def wait_s(self, now_s: float) -> float:
        """How long a request that comes now would wait: the work ahead of it, over the rate. Infinite if work waits and none leaves."""
        if not self.ready_us:
            return 0.0
        rate = self.per_second(now_s)
        return self.ready_us / rate if rate > 0.0 else float("inf")


class _Place:
    """A request in the list of its rank: the values it was counted with, and its older and newer neighbours."""

    __slots__ = ("newer", "older", "rank", "request_id", "work", "work_us")

    def __init__(self, request_id: str, rank: Rank, work_us: int, work: QueuedWork, older: "_Place | None") -> None:
        self.request_id = request_id
        self.rank = rank
        self.work_us = work_us
        self.work = work
        self.older = older
        self.newer: _Place | None = None


class Backlog:
    """Every waiting request, in a list per rank. O(1) a call; `worst` is O(ranks in use)."""

    __slots__ = ("_makes_way", "_newest", "_places")

    def __init__(self, *, makes_way: bool = True) -> None:
        """Starts empty. `makes_way`: whether requests that become overdue let all others go first."""
        self._makes_way = makes_way
        self._newest: dict[Rank, _Place] = {}
        self._places: ShardedDict[_Place] = ShardedDict()

    def __len__(self) -> int:
        return len(self._places)

    def put(self, entry: QueueEntry, work: QueuedWork, *, overdue: bool) -> None:
        """Adds a request, or moves it to the rank of its current estimates. `work`: that of the requests waiting for the same instances."""
        request_id = entry.request.id
        rank = rank_of(entry.request, entry.estimates.importance, overdue=overdue)
        work_us = max(1, int(1000.0 * entry.estimates.total_ms))
        before = self._places.get(request_id)
        if before is not None:
            self._take(before, left=overdue and self._makes_way)
        older = self._newest.get(rank)
        self._places[request_id] = self._newest[rank] = place = _Place(request_id, rank, work_us, work, older)
        if older is not None:
            older.newer = place
        if not (overdue and self._makes_way):
            work.ready_us += work_us

    def move(self, request_id: str, work: QueuedWork) -> None:
        """Counts the request for other instances from now on; no effect if it is not here."""
        place = self._places.get(request_id)
        if place is None or place.work is work:
            return
        before, place.work = place.work, work
        if not (place.rank[2] and self._makes_way):
            before.ready_us -= place.work_us
            work.ready_us += place.work_us

    def discard(self, request_id: str) -> None:
        """Removes a request that no longer waits; no effect if it is not here."""
        place = self._places.take(request_id)
        if place is not None:
            self._take(place, left=True)

    def worst(self) -> tuple[Rank, str] | None:
        """The request that would be given up first: the newest one of the greatest rank; None if none waits."""
        if not self._newest:
            return None
        rank = max(self._newest)
        return rank, self._newest[rank].request_id

    def _take(self, place: _Place, *, left: bool) -> None:
        older, newer, rank = place.older, place.newer, place.rank
        if older is not None:
            older.newer = newer
        if newer is not None:
            newer.older = older
        elif older is not None:
            self._newest[rank] = older
        else:
            del self._newest[rank]
        place.older = place.newer = None
        if not (rank[2] and self._makes_way):
            place.work.ready_us -= place.work_us
            if left:
                place.work.left_us += place.work_us
