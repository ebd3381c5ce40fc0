"""Requests that wait beside an engine with spare capacity: for how long, why, and when they are dispatched anyway. Pure.

A request is mostly held back by a forecast: a length that fills the KV fence, a window, a target that seems out of reach. An engine's own
figures take precedence. If an instance takes requests, has free places and free cache, and keeps its targets with a margin, a request is
held back for `HELD_MOST_S` at most, and for `WINDOW_HELD_MOST_S` if only an agent's window holds it: in so short a time only a few requests
collect, too few to slow down the requests in flight when they are dispatched together.

The TPOT guard is no forecast: it decides by the pace that it measures, and gives way by itself once it has held all requests back for 3 s.
In simulation, requests that were dispatched against it cost 3 to 7 points of all that were served in time past capacity. Nor is room a
forecast that is kept from a flood, or for stricter targets: others have asked for it. So the guard has to admit what is dispatched here,
and room that is kept stays free.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf

from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.dispatch import BARRED_MOST, PATIENCE, RESERVED
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.room import has_cache_for, is_half_empty, shows_room
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.queue.model_queue import GUARD, PROMPTS, STRICTER, WINDOW, ModelQueue, QueuedRequest

HELD_MOST_S = 1.0
"""How long a request may be held back beside an instance that is less than half full."""
WINDOW_HELD_MOST_S = 0.5
"""The same bound if every window is full: the number of running requests is known, so no length or pace has to be forecast."""
_EARLY_S = 1e-3
"""Tolerance for a tick that comes early by a rounding error."""
_GAP_MOST_S = 1.0
"""Longest time that one check adds: after a longer gap the process was stalled."""
_LOOK_AHEAD = 8
Relieves = Callable[[QueuedRequest, Instance, float], bool]
"""As `DispatchPlanner.relieves`."""


class IdleHolds:
    """Checks the queues once per tick.

    Attributes:
        seconds: Time for which at least one request waited beside an instance with spare capacity, by the reason of the first one waiting.
    """

    __slots__ = ("_due", "_looked_s", "_since_s", "seconds")

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since_s: dict[int, float] = {}
        self._looked_s = float("inf")
        self._due: list[tuple[ModelQueue, Instance]] = []

    def look(self, groups: Iterable[ModelQueue], now_s: float) -> None:
        """Records which groups are held back beside spare capacity now. O(groups that hold any x instances)."""
        elapsed_s = min(_GAP_MOST_S, max(0.0, now_s - self._looked_s))
        self._looked_s = now_s
        since_s: dict[int, float] = {}
        self._due = []
        for group in groups:
            if group.first is None or group.blocked == "":
                continue
            roomy = [instance for instance in group.instances.all if _may_take(instance)]
            if not roomy:
                continue
            self.seconds[group.blocked] = self.seconds.get(group.blocked, 0.0) + elapsed_s
            began_s, most_s = self._since_s.get(id(group), now_s), _most_s(group)
            # What the guard has held for a while is not yet held too long by a window or forecast: its time does not count.
            since_s[id(group)] = began_s if most_s < inf else min(now_s, began_s + elapsed_s)
            if now_s - began_s >= most_s:
                self._due += [(group, instance) for instance in roomy if is_half_empty(instance, now_s)]
        self._since_s = since_s

    def take(self, tenancy: Tenancy, relieves: Relieves, now_s: float) -> Iterator[tuple[QueuedRequest, Instance]]:
        """The requests to dispatch despite what holds them: at most one per half-empty instance and check, the oldest first.

        One at a time keeps an instance from being flooded with prompts because of stale figures; at the gateway's ten ticks per second no
        client notices that bound. A tenant's own limit is no forecast: its requests keep waiting.
        """
        due, self._due = self._due, []
        due.sort(key=lambda pair: pair[1].sequences)
        for group, instance in due:
            waiting = _oldest(group, instance, tenancy, relieves, now_s)
            if waiting is not None and _may_take(instance):
                yield waiting, instance


def _may_take(instance: Instance) -> bool:
    return shows_room(instance) and (instance.advised or instance.sequences < instance.n_run)


def _most_s(group: ModelQueue) -> float:
    if group.blocked in {GUARD, STRICTER, PROMPTS, RESERVED}:
        return inf
    return (WINDOW_HELD_MOST_S if group.blocked == WINDOW else HELD_MOST_S) - _EARLY_S


def _oldest(group: ModelQueue, instance: Instance, tenancy: Tenancy, relieves: Relieves, now_s: float) -> QueuedRequest | None:
    window = instance.capacity_n_run if instance.advised else instance.n_run
    oldest = islice(group.members.values(), BARRED_MOST + _LOOK_AHEAD)
    # It may have changed its models since it was looked at.
    able = (one for one in oldest if instance.serves(one.entry.request.model) and _suits(one.entry, instance, group))
    for waiting in islice(able, _LOOK_AHEAD):
        request = waiting.entry.request
        if not instance.holds(request.sequences, window):
            if waiting.entry.skipped >= PATIENCE:
                # The instance may be the one that is kept free for it.
                return None
            continue
        limited = request.tenant in tenancy.bounded and tenancy.closed(request.tenant, request.sequences)
        is_due = waiting.place != "expired" and not limited and now_s - request.arrival_s >= _most_s(group)
        if is_due and has_cache_for(instance, request):
            return waiting if relieves(waiting, instance, now_s) else None
    return None


def _suits(entry: QueueEntry, instance: Instance, group: ModelQueue) -> bool:
    request = entry.request
    return instance.may_take(entry) and (
        instance.can_hold(request.model, 0, request.context_needed)
        or instance.can_hold(request.model, *group.instances.least_to_hold(entry))
    )
