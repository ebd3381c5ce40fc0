"""Whether a request is taken into the queue at all, and when one that is sent away may come back."""

from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling import refusals as endings
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.kv_fence import least_tokens
from hmas.controller.scheduling.queue.backlog import rank_of
from hmas.controller.scheduling.queue.wait_queue import WaitQueue
from hmas.controller.scheduling.results import Refusal
from hmas.controller.scheduling.settings import SchedulerSettings

RETRY_AFTER_MIN_S = 1.0
RETRY_AFTER_MAX_S = 60.0


class QueueAdmission:
    """Asks in this order: can it ever be served, has its tenant the tokens, is there room in the queue for it.

    A full queue has room for a request that ranks better than the worst that waits there: by the client's priority, then by importance,
    then one that is in time before one that is overdue. Who waits in time is not given up for an equal that has only just come.
    """

    __slots__ = ("_settings", "_tenancy", "_wait_queue")

    def __init__(self, settings: SchedulerSettings, room: WaitQueue, tenancy: Tenancy) -> None:
        self._settings = settings
        self._wait_queue = room
        self._tenancy = tenancy

    def refusal(self, request: Request, estimates: Estimates, now_s: float) -> Refusal | None:
        """Why a request is not taken in, None where it is; it is charged to its tenant then. O(instances)."""
        instances = self._wait_queue.group_of(request.model).instances
        tokens = least_tokens(request)
        for instance in instances:
            if instance.fence.fits(tokens):
                break
        else:
            if instances:
                return endings.too_large(request, instances)
        metered = request.tenant in self._tenancy.metered
        over = self._tenancy.over_quota(request, estimates, now_s) if metered else None
        if over is not None:
            return endings.over_quota(request, over)
        if len(self._wait_queue) >= self._settings.queue_limit and not self._outranks(request, estimates):
            wait_s = max(self._wait_queue.group_of(request.model).work.wait_s(now_s), self._place_s(now_s))
            return endings.queue_full(len(self._wait_queue), self._settings.queue_limit, told_s(wait_s))
        if metered:
            self._tenancy.charge(request, estimates, now_s)
        return None

    def _outranks(self, request: Request, estimates: Estimates) -> bool:
        """Whether it ranks better than the worst that waits, which then has to go in its place."""
        worst = self._wait_queue.backlog.worst() if self._settings.evict_lower_ranked else None
        return worst is not None and rank_of(request, estimates.importance, overdue=False) < worst[0]

    def sample(self, now_s: float) -> None:
        """Looks how much work has left each queue; to be called now and then. O(models)."""
        for group in self._wait_queue.groups:
            group.work.sample(now_s)

    def retry_after_s(self, model: str, now_s: float) -> float:
        """When a client of this model that is sent away would have been served had it waited, 1 to 60 s.

        The queue of each model, or of those that the same instances serve, has a pace of its own (see `Work`): work leaves it when it is
        dispatched, ends, or is overdue and makes way. Neither a long queue of another model nor the speed of its instances counts.
        """
        return told_s(self._wait_queue.group_of(model).work.wait_s(now_s))

    def _place_s(self, now_s: float) -> float:
        """How long until one of all that wait has left, whichever queue it is in: the limit on waiting requests is one for all."""
        groups = self._wait_queue.groups
        pace = sum(group.work.per_second(now_s) for group in groups)
        mean_us = sum(group.work.ready_us for group in groups) / max(1, len(self._wait_queue))
        return mean_us / pace if pace > 0.0 else float("inf")


def told_s(wait_s: float) -> float:
    """A wait as clients are told it, 1 to 60 s."""
    return min(RETRY_AFTER_MAX_S, max(RETRY_AFTER_MIN_S, wait_s))
