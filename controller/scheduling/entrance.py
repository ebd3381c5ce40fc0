"""Whether a request is taken into the queue at all, and when one that is sent away may come back."""

from controller.core.types import Estimates, Request
from controller.scheduling import endings
from controller.scheduling.admission import least_tokens
from controller.scheduling.drain_rate import DrainRate
from controller.scheduling.outcomes import Refusal, SchedulerSettings
from controller.scheduling.tenancy import Tenancy
from controller.scheduling.waiting_room import WaitingRoom

RETRY_AFTER_MIN_S = 1.0
RETRY_AFTER_MAX_S = 60.0


class Entrance:
    """Asks in this order: can it ever be served, has its tenant the tokens, is there room in the queue."""

    __slots__ = ("_drain", "_room", "_settings", "_tenancy")

    def __init__(self, settings: SchedulerSettings, room: WaitingRoom, tenancy: Tenancy, drain: DrainRate) -> None:
        self._settings = settings
        self._room = room
        self._tenancy = tenancy
        self._drain = drain

    def refusal(self, request: Request, estimates: Estimates, now_s: float) -> Refusal | None:
        """Why a request is not taken in, None where it is; it is charged to its tenant then. O(instances)."""
        instances = self._room.group_of(request.model).instances
        if instances and not any(instance.fence.fits(least_tokens(request)) for instance in instances):
            return endings.too_large(request, instances)
        over = self._tenancy.over_quota(request, estimates, now_s)
        if over is not None:
            return endings.over_quota(request, over)
        if len(self._room) >= self._settings.queue_limit:
            return endings.queue_full(len(self._room), self._settings.queue_limit, self.retry_after_s(now_s))
        self._tenancy.charge(request, estimates, now_s)
        return None

    def retry_after_s(self, now_s: float) -> float:
        """When a refused client may find room: the time the queue takes to empty at its recent pace, 1 to 60 s."""
        if not len(self._room):
            return RETRY_AFTER_MIN_S
        rate = self._drain.per_second(now_s)
        if rate <= 0.0:
            return RETRY_AFTER_MAX_S
        return min(RETRY_AFTER_MAX_S, max(RETRY_AFTER_MIN_S, len(self._room) / rate))
