"""Decides whether a request is admitted to the queue, and when the client of a refused request may retry."""

from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling import refusals as endings
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.kv_fence import certain_tokens
from hmas.controller.scheduling.queue.backlog import rank_of
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.settings import SchedulerSettings

RETRY_AFTER_MIN_S = 1.0
RETRY_AFTER_MAX_S = 60.0


class QueueAdmission:
    """Checks in this order: can the request ever be served, has its tenant room and quota, and has the queue a place.

    A full queue admits a request that ranks better than the worst waiting one. The rank is the client's priority, then importance, then in
    time before overdue. A waiting request that is in time is not given up for a newcomer of equal rank.
    """

    __slots__ = ("_settings", "_tenancy", "_wait_queue")

    def __init__(self, settings: SchedulerSettings, room: WaitQueue, tenancy: Tenancy) -> None:
        self._settings = settings
        self._wait_queue = room
        self._tenancy = tenancy

    def refusal(self, request: Request, estimates: Estimates, now_s: float, *, is_full: bool) -> Refusal | None:
        """The refusal of a request, None if it is admitted; then it is charged to its tenant. O(instances). `is_full`: see there."""
        instances = self._wait_queue.queues.of(request.model).instances.all
        tokens = certain_tokens(request)
        for instance in instances:
            if instance.fence.holds(tokens):
                break
        else:
            if instances:
                return endings.too_large(request, instances)
        metered = request.tenant in self._tenancy.metered
        over = self._tenancy.over_quota(request, estimates, now_s) if metered else None
        if over is not None:
            return endings.over_quota(request.tenant, over)
        full = self._tenancy.over_waiting(request)
        if full is not None:
            return endings.tenant_queue_full(request, full, self.retry_after_s(request.model, now_s))
        if is_full and not self._outranks(request, estimates):
            wait_s = max(self._wait_queue.wait_s(request.model, now_s), self._place_s(now_s))
            return endings.queue_full(len(self._wait_queue), self._settings.queue_limit, told_s(wait_s))
        if metered:
            self._tenancy.charge(request, estimates, now_s)
        return None

    def is_full(self, request: Request) -> bool:
        """Whether the queue has no place for it. It needs none where none waits for its model and an instance is free. O(instances)."""
        if len(self._wait_queue) < self._settings.queue_limit:
            return False
        queues = self._wait_queue.queues
        return not queues.of(request.model).instances.open or any(group.members for group in queues.serving(request.model))

    def _outranks(self, request: Request, estimates: Estimates) -> bool:
        """Whether the request ranks better than the worst waiting one, which then has to leave."""
        worst = self._wait_queue.backlog.worst() if self._settings.evict_lower_ranked else None
        return worst is not None and rank_of(request, estimates.importance, overdue=False) < worst[0]

    def sample(self, now_s: float) -> None:
        """Samples how much work has left each queue. The caller does this at regular intervals. O(groups)."""
        for group in self._wait_queue.queues.groups:
            group.work.sample(now_s)

    def retry_after_s(self, model: str, now_s: float) -> float:
        """When a refused client of this model would have been served had its request waited, 1 to 60 s.

        The queue of each group of models served by the same instances has a pace of its own (see `QueuedWork`): work leaves it when a
        request is dispatched, ends, or becomes overdue and makes way. A long queue of another model, or the speed of its instances, does
        not count.
        """
        return told_s(self._wait_queue.wait_s(model, now_s))

    def _place_s(self, now_s: float) -> float:
        """Seconds until one of all waiting requests leaves, from any queue: the limit on waiting requests is global."""
        groups = self._wait_queue.queues.groups
        pace = sum(group.work.per_second(now_s) for group in groups)
        mean_us = sum(group.work.ready_us for group in groups) / max(1, len(self._wait_queue))
        return mean_us / pace if pace > 0.0 else float("inf")


def told_s(wait_s: float) -> float:
    """A wait as reported to clients, bounded to 1 to 60 s."""
    return min(RETRY_AFTER_MAX_S, max(RETRY_AFTER_MIN_S, wait_s))
