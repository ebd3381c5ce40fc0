"""What a scheduler shows of its requests, for operators and observers."""

from itertools import islice

from hmas.controller.scheduling import accounts
from hmas.controller.scheduling.admission.quotas import RateState
from hmas.controller.scheduling.instances.room import is_half_empty
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_control import PolicyControl
from hmas.controller.scheduling.results import TenantLoad
from hmas.controller.scheduling.retry import may_retry


class SchedulerReports(PolicyControl):
    """Reads the state of a scheduler and changes nothing."""

    def in_flight(self, instance: str) -> int:
        """Requests in flight on an instance.

        Raises:
            SchedulingError: Unknown instance.
        """
        return self._instance(instance).in_flight

    def sequences(self, instance: str) -> int:
        """Sequences of the requests in flight on an instance, which count against its window.

        Raises:
            SchedulingError: Unknown instance.
        """
        return self._instance(instance).sequences

    def is_half_empty(self, instance: str, now_s: float) -> bool:
        """Whether an instance is less than half full by its own figures (`room.is_half_empty`). O(in flight).

        Raises:
            SchedulingError: Unknown instance.
        """
        return is_half_empty(self._instance(instance), now_s)

    @property
    def cost_threshold(self) -> float:
        """The cost above which requests are put behind others (see `ModelQueues`). O(groups)."""
        return self._wait_queue.queues.cost_threshold

    def heads(self) -> list[QueueEntry]:
        """Of each group of requests that the same instances serve, the oldest one that is bound to none of them. O(groups)."""
        return [group.first.entry for group in self._wait_queue.queues.central if group.first is not None]

    def oldest(self, model: str, limit: int) -> list[QueueEntry]:
        """The oldest waiting requests in the group of `model` that are bound to no instance, at most `limit`."""
        return [waiting.entry for waiting in islice(self._wait_queue.queues.of(model).members.values(), limit)]

    def queued_ids(self) -> list[str]:
        """Ids of all waiting requests, oldest first. O(n)."""
        return [entry.request.id for entry in self._wait_queue.entries()]

    def missed(self, now_s: float) -> int:
        """How many waiting requests have missed their TTFT target; a whole answer may still be in time. O(n)."""
        return sum(entry.request.stream and entry.ttft_deadline_s < now_s for entry in self._wait_queue.entries())

    def running_ids(self) -> list[str]:
        """Ids of all running requests, in the order of dispatch."""
        return list(self._running)

    def may_retry(self, request_id: str) -> bool:
        """Whether a running request could go to another instance now."""
        run = self._running.get(request_id)
        return run is not None and may_retry(run, self._wait_queue.queues.of(run.entry.request.model).instances.all)

    def position(self, request_id: str) -> int | None:
        """How many requests would go before it now, None if it does not wait. O(n); an estimate where lanes or tenants interleave."""
        waiting = self._wait_queue.get(request_id)
        return None if waiting is None else waiting.group.rank(waiting)

    def bound_to(self, request_id: str) -> str:
        """The instance in whose queue a request waits, empty if it waits in that of its model or not at all."""
        waiting = self._wait_queue.get(request_id)
        return "" if waiting is None else waiting.entry.bound

    def tenants(self, now_s: float) -> dict[str, TenantLoad]:
        """What each tenant has waiting and in flight. O(waiting + running)."""
        return accounts.by_tenant(self._wait_queue, self._running.values(), now_s)

    def rates(self, tenant: str, now_s: float) -> dict[str, RateState]:
        """A tenant's current quotas, keyed by `tokens` and `requests`; empty if it has none."""
        return self.tenancy.rates(tenant, now_s)
