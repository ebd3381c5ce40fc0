"""All queued requests, including those that are overdue or past their deadline."""

import math
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice

from hmas.controller.core.types import Estimates
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.lateness import first_look_s, needed_ms
from hmas.controller.scheduling.policy_base.lazy_heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.service_split import FOLLOWS_TRAFFIC, SLOW_QUANTILE, ServiceSplit
from hmas.controller.scheduling.policy_base.sharded_dict import ShardedDict
from hmas.controller.scheduling.queue.backlog import Backlog
from hmas.controller.scheduling.queue.model_queue import ModelQueue, QueuedRequest
from hmas.controller.scheduling.queue.policy_switch import AT_ONCE, PolicySwitcher
from hmas.controller.scheduling.queue.tenant_share import pop_any

SWEEP = 128
"""Most requests of either kind that one sweep moves: in a burst, all requests have the same arrival and target."""


class WaitQueue:
    """The whole queue. Sweeps cost O(log n) per request that changes its place, nothing for the others.

    No call touches all waiting requests if there are more than `AT_ONCE`: such work is started, and `settle` continues it. This applies to
    changes of the queues as a whole (see `PolicySwitcher`), to new weights, to a new split between short and long, and to a burst of
    requests that expire together.

    Attributes:
        queues: The structures that hold all requests but those past their deadline.
        backlog: The rank of each request, and how much work they are.
        tokens: Prompt tokens of all waiting requests. `overdue`, `long`: how many are overdue, and on the slow side of the split.
        tasks: How many requests wait of each task type seen so far.
        weights: Tenants' weights; `reweigh` applies them to waiting entries.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        *,
        policy: str,
        parameters: Mapping[str, float] | None,
        demoting: bool,
        service_share: float,
        shown: bool = False,
        overdue_wait_s: float = math.inf,
        tenancy: Tenancy | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._demoting = demoting
        self._service_share = service_share
        self._shown = shown
        self._overdue_wait_s = overdue_wait_s
        self._waiting: ShardedDict[QueuedRequest] = ShardedDict()
        self._overdue_at: LazyHeap[QueuedRequest] = LazyHeap()
        self._deadlines: LazyHeap[QueuedRequest] = LazyHeap()
        self._expired: LazyHeap[QueuedRequest] = LazyHeap()
        self.weights: Mapping[str, float] = {} if weights is None else weights
        self.backlog = Backlog(makes_way=demoting)
        self.tokens = 0
        self.overdue = 0
        self.long = 0
        self.tasks: dict[str, int] = {}
        self._behind = False
        self.queues = PolicySwitcher(
            instances,
            policy=policy,
            parameters=parameters,
            tenancy=tenancy,
            count=self._waiting.__len__,
            on_force=self._in_force,
            on_look=self._look,
        )
        self._split = ServiceSplit(*self._split_parameters())

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, request_id: str) -> QueuedRequest | None:
        """The waiting request with that id, None if there is none."""
        return self._waiting.get(request_id)

    def ids(self) -> Iterator[str]:
        """Ids of all waiting requests, oldest submission first."""
        return (waiting.entry.request.id for waiting in self._in_order())

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, oldest submission first."""
        return (waiting.entry for waiting in self._in_order())

    @property
    def groups(self) -> list[ModelQueue]:
        """All groups that dispatches may come from."""
        return self.queues.groups

    def group_of(self, model: str) -> ModelQueue:
        """The group that requests for this model belong to."""
        return self.queues.of(model)

    def oldest_s(self) -> float | None:
        """Arrival of the oldest request, None if none waits."""
        return min((group.first.entry.request.arrival_s for group in self.queues.all() if group.first is not None), default=None)

    # -- one request ------------------------------------------------------------------------------------------------------

    def add(self, entry: QueueEntry, now_s: float, *, returned: bool = False) -> None:
        """Adds a request; one that is `returned` from an instance is placed among the oldest."""
        group = self.queues.of(entry.request.model)
        waiting = QueuedRequest(entry, group)
        request_id = entry.request.id
        self._waiting[request_id] = waiting
        if returned:
            entry.weight = self.weights.get(entry.request.tenant, entry.weight)
        self.tokens += entry.request.prompt_tokens
        self._count_task(entry.estimates, 1)
        self.backlog.put(entry, group.work, overdue=False)
        group.join(waiting, front=returned)
        group.put(waiting, now_s)
        self._watch(waiting)
        self._watch_deadline(waiting, overdue=False)
        self._split.learn(entry.estimates.total_ms)
        self._count_long(waiting)

    def revise(self, request_id: str, estimates: Estimates, now_s: float) -> bool:
        """Gives a waiting request new estimates and the place that follows from them. False if it does not wait."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return False
        entry = waiting.entry
        self._count_task(entry.estimates, -1)
        self._count_task(estimates, 1)
        entry.estimates = estimates
        self._count_long(waiting)
        if waiting.place == "expired":
            return True
        latest_s = self._latest_start_s(waiting)
        if waiting.overdue and latest_s >= now_s:
            waiting.overdue = False
            self.overdue -= 1
        if not waiting.overdue:
            self._watch(waiting)
        self.backlog.put(entry, waiting.group.work, overdue=waiting.overdue)
        if waiting.place == "ready":
            waiting.group.rekey(waiting, now_s)
        elif not waiting.overdue:
            waiting.group.take(waiting)
            waiting.place = "ready"
            waiting.group.put(waiting, now_s)
            self._watch_deadline(waiting, overdue=False)
        return True

    def remove(self, request_id: str, *, popped: bool = False) -> QueueEntry | None:
        """Removes a request, None if it does not wait. `popped`: its policy has handed it out already."""
        waiting = self._waiting.take(request_id)
        if waiting is None:
            return None
        if popped:
            waiting.group.popped(waiting)
        elif waiting.place == "expired":
            self._expired.discard(request_id)
        else:
            waiting.group.take(waiting)
        waiting.group.leave(waiting)
        self.backlog.discard(request_id)
        self._overdue_at.discard(request_id)
        self._deadlines.discard(request_id)
        self.tokens -= waiting.entry.request.prompt_tokens
        self._count_task(waiting.entry.estimates, -1)
        self.overdue -= waiting.overdue
        self.long -= waiting.long
        return waiting.entry

    # -- time -------------------------------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> bool:
        """Moves requests that have become overdue or reached their deadline, at most `SWEEP` of either kind; True while some are left.

        A deadline has passed once it is reached, a TTFT target only after it.
        """
        overdue, deadlines = self._overdue_at, self._deadlines
        for _ in range(SWEEP):
            due = overdue.peek()
            if due is None or due[0] >= now_s:
                break
            waiting = due[1]
            latest_s = self._latest_start_s(waiting)
            if latest_s >= now_s:
                overdue.push(waiting.entry.request.id, latest_s, waiting.entry.seq, waiting)
                continue
            overdue.discard(waiting.entry.request.id)
            waiting.overdue = True
            self.overdue += 1
            self.backlog.put(waiting.entry, waiting.group.work, overdue=True)
            if waiting.place == "ready":
                waiting.group.on_overdue(waiting, now_s)
            if self._demoting:
                waiting.group.take(waiting)
                waiting.place = "late"
                waiting.group.late.push(waiting.entry, now_s)
                self._watch_deadline(waiting, overdue=True)
        for _ in range(SWEEP):
            due = deadlines.peek()
            if due is None or due[0] > now_s:
                break
            waiting = due[1]
            request_id = waiting.entry.request.id
            deadlines.discard(request_id)
            overdue.discard(request_id)
            waiting.group.take(waiting)
            self.backlog.discard(request_id)
            waiting.place = "expired"
            self._expired.push(request_id, float(waiting.entry.seq), waiting.entry.seq, waiting)
        self._behind = _due(overdue, now_s, reached=False) or _due(deadlines, now_s, reached=True)
        return self._behind

    def take_expired(self, limit: int) -> list[QueueEntry]:
        """Takes out requests past their deadline, at most `limit`, in the order of arrival."""
        taken: list[QueueEntry] = []
        while len(taken) < limit and (due := self._expired.peek()) is not None:
            waiting = due[1]
            if waiting.overdue:
                waiting.group.given_up.ended(dropped=True)
            taken.append(waiting.entry)
            self.remove(waiting.entry.request.id)
        return taken

    def take_late(self, limit: int, now_s: float) -> list[QueueEntry]:
        """Takes out demoted requests, at most `limit`, in the order of arrival."""
        taken: list[QueueEntry] = []
        for group in self.queues.all():
            while len(taken) < limit and (entry := pop_any(group.late, now_s)) is not None:
                group.given_up.ended(dropped=True)
                self.remove(entry.request.id, popped=True)
                taken.append(entry)
        taken.sort(key=lambda entry: entry.seq)
        return taken

    # -- changes ----------------------------------------------------------------------------------------------------------

    def reweigh(self, now_s: float) -> None:
        """Gives every waiting entry its tenant's current weight."""
        self.queues.look_at_each(now_s)

    def sort_tenants(self, now_s: float) -> None:
        """See `PolicySwitcher.sort_tenants`."""
        self.queues.sort_tenants(now_s)

    def settle(self, limit: int, now_s: float) -> bool:
        """Continues the work in progress, over at most `limit` requests; True while some is left."

        Raises:
            SchedulingError: See `PolicySwitcher.settle`.
        """
        behind = self._behind and self.sweep(now_s)
        return self.queues.settle(limit, now_s) or behind

    @property
    def settled(self) -> bool:
        """Whether `settle` has nothing left to do."""
        return not self._behind and self.queues.settled

    def held(self) -> int:
        """How many requests the structures hold in total; equal to `len` unless a request was lost or counted twice."""
        return sum(group.held for group in self.queues.all()) + len(self._expired)

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _in_order(self) -> Iterator[QueuedRequest]:
        """All waiting requests, merged from the registers of the groups: oldest submission first, returned ones in front."""
        return merge(*self.queues.all(), key=lambda waiting: waiting.entry.seq)

    def _in_force(self) -> bool:
        """Adopts the split between short and long of a newly active policy; True if it differs from the former one."""
        changed = self._split_parameters() != self._split.parameters
        if changed:
            self._split = ServiceSplit(*self._split_parameters())
            back = merge(*(group.backwards() for group in self.queues.all()), key=lambda waiting: -waiting.entry.seq)
            newest = [waiting.entry.estimates.total_ms for waiting in islice(back, AT_ONCE)]
            self._split.learn_all(newest[::-1])
        return changed

    def _look(self, waiting: QueuedRequest) -> None:
        self.backlog.move(waiting.entry.request.id, waiting.group.work)
        waiting.entry.weight = self.weights.get(waiting.entry.request.tenant, waiting.entry.weight)
        self._count_long(waiting)

    def _latest_start_s(self, waiting: QueuedRequest) -> float:
        """When the request must be dispatched to meet its TTFT target, by the current measurements of the instances."""
        entry = waiting.entry
        shown_ms = waiting.group.first_token_ms(entry) if self._shown else None
        return entry.ttft_deadline_s - needed_ms(self._least_ms(waiting), shown_ms, entry.estimates.slo.ttft_ms) / 1000.0

    def _least_ms(self, waiting: QueuedRequest) -> float:
        """The least time to its first token: a share of the prediction or of the measured prefill time, whichever is shorter."""
        return self._service_share * min(waiting.group.prefill_ms(waiting.entry), waiting.entry.estimates.ttft_ms)

    def _watch(self, waiting: QueuedRequest) -> None:
        """Schedules a check for the earliest time at which the request may become overdue."""
        entry = waiting.entry
        if self._shown:
            look_s = first_look_s(entry.ttft_deadline_s, self._least_ms(waiting), entry.estimates.slo.ttft_ms)
        else:
            look_s = self._latest_start_s(waiting)
        self._overdue_at.push(entry.request.id, look_s, entry.seq, waiting)

    def _watch_deadline(self, waiting: QueuedRequest, *, overdue: bool) -> None:
        """Ends its wait at its own deadline, or `overdue_wait_s` after its TTFT target if it has missed that."""
        entry = waiting.entry
        until_s = entry.request.deadline_s
        if overdue:
            until_s = min(until_s, entry.ttft_deadline_s + self._overdue_wait_s)
        if until_s < math.inf:
            self._deadlines.push(entry.request.id, until_s, entry.seq, waiting)
        else:
            self._deadlines.discard(entry.request.id)

    def _count_long(self, waiting: QueuedRequest) -> None:
        is_long = self._split.is_long(waiting.entry.estimates.total_ms)
        self.long += is_long - waiting.long
        waiting.long = is_long

    def _count_task(self, estimates: Estimates, number: int) -> None:
        task = estimates.task_type.value
        self.tasks[task] = self.tasks.get(task, 0) + number

    def _split_parameters(self) -> tuple[float, float]:
        parameters = self.queues.parameters
        return parameters.get("threshold_ms", FOLLOWS_TRAFFIC), parameters.get("slow_quantile", SLOW_QUANTILE)


def _due(heap: LazyHeap[QueuedRequest], now_s: float, *, reached: bool) -> bool:
    first = heap.peek()
    return first is not None and (first[0] <= now_s if reached else first[0] < now_s)
