"""All queued requests, including those that are overdue or past their deadline."""

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from hmas.controller.core.types import Estimates
from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.instances.lateness import first_look_s, needed_ms
from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.service_split import ServiceSplit
from hmas.controller.scheduling.queue.backlog import Backlog
from hmas.controller.scheduling.queue.model_queue import QueuedRequest
from hmas.controller.scheduling.queue.model_queues import ModelQueues

SWEEP = 128
"""Most requests of either kind that one sweep moves: in a burst, all requests have the same arrival and target."""


class WaitQueue:
    """The whole queue. Sweeps cost O(log n) per request that changes its place, nothing for the others.

    A change of policy, weights, limits or models touches all requests at once, in linear time. A burst of requests that become overdue or
    expire together is moved a bounded number at a time.

    Attributes:
        queues: The structures that hold all requests but those past their deadline.
        backlog: The rank of each request, and how much work they are.
        tokens: Prompt tokens of all waiting requests. `overdue`, `long`: how many are overdue, and on the slow side of the split.
        weights: Tenants' weights; `reweigh` applies them to waiting entries.
        behind: Whether the last sweep moved as many requests as it may, so that overdue or expired ones may be left in their place.
        unsettled: Whether instances have changed the models they serve since the groups were formed.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        *,
        policy: str,
        parameters: Mapping[str, float] | None,
        demoting: bool,
        service_share: float,
        shown: bool,
        overdue_wait_s: float,
        tenancy: Tenancy,
        weights: Mapping[str, float],
        binds: bool = False,
    ) -> None:
        self._demoting = demoting
        self._service_share = service_share
        self._shown = shown
        self._overdue_wait_s = overdue_wait_s
        self._waiting: dict[str, QueuedRequest] = {}
        self._overdue_at: LazyHeap[QueuedRequest] = LazyHeap()
        self._deadlines: LazyHeap[QueuedRequest] = LazyHeap()
        self._expired: LazyHeap[QueuedRequest] = LazyHeap()
        self.weights = weights
        self.backlog = Backlog(makes_way=demoting)
        self.tokens = 0
        self.overdue = 0
        self.long = 0
        self.behind = False
        self.unsettled = False
        self._tenancy = tenancy
        self.queues = ModelQueues(instances, policy=policy, parameters=parameters, tenancy=tenancy, binds=binds)
        self._split = ServiceSplit(*self.queues.long_split)

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, request_id: str) -> QueuedRequest | None:
        """The waiting request with that id, None if there is none."""
        return self._waiting.get(request_id)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, oldest submission first."""
        return (waiting.entry for waiting in sorted(self._waiting.values(), key=attrgetter("entry.seq")))

    def wait_s(self, model: str, now_s: float) -> float:
        """How long a request for this model that comes now would wait (`QueuedWork`).

        Where requests are bound, it would wait in the shortest queue of an instance that takes requests; in the common one if none does.
        """
        common, *bound = self.queues.serving(model)
        waits_s = [group.work.wait_s(now_s) for group in bound if any(instance.available for instance in group.instances.all)]
        return min(waits_s, default=common.work.wait_s(now_s))

    def oldest_s(self) -> float | None:
        """Arrival of the oldest request, None if none waits."""
        return min((group.first.entry.request.arrival_s for group in self.queues.groups if group.first is not None), default=None)

    # -- one request ------------------------------------------------------------------------------------------------------

    def add(self, entry: QueueEntry, now_s: float, *, returned: bool = False) -> None:
        """Adds a request; one that is `returned` from an instance is placed among the oldest."""
        group = self.queues.holding(entry)
        waiting = QueuedRequest(entry, group)
        request_id = entry.request.id
        self._waiting[request_id] = waiting
        self._tenancy.joined(entry.request)
        if returned:
            entry.weight = self.weights.get(entry.request.tenant, entry.weight)
        self.tokens += entry.request.prompt_tokens
        self.backlog.put(entry, group.work, overdue=False)
        group.members[request_id] = waiting
        if returned:
            group.members.move_to_end(request_id, last=False)
        if not returned:
            group.asks(entry, now_s)
        group.put(waiting, now_s)
        self._watch(waiting)
        self._watch_deadline(waiting, overdue=False)
        self._split.learn(entry.estimates.total_ms)
        self._count_long(waiting)

    def forgive(self, instance: str) -> None:
        """Lets an instance that is back after an outage take the requests that it failed before. O(n)."""
        for waiting in self._waiting.values():
            waiting.entry.tried -= {instance}

    def revise(self, request_id: str, estimates: Estimates, now_s: float) -> bool:
        """Gives a waiting request new estimates and the place that follows from them. False if it does not wait."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return False
        entry = waiting.entry
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
            waiting.group.ready.policy.rekey(entry, now_s)
        elif not waiting.overdue:
            waiting.group.take(waiting)
            waiting.place = "ready"
            waiting.group.put(waiting, now_s)
            self._watch_deadline(waiting, overdue=False)
        return True

    def rebind(self, moves: Sequence[tuple[QueuedRequest, str]], now_s: float) -> None:
        """Moves waiting requests to the queues of other instances, "" for that of their model; the order of submission is kept."""
        for waiting, instance in moves:
            waiting.group.take(waiting)
            del waiting.group.members[waiting.entry.request.id]
            waiting.entry.bound = instance
        moved = [waiting for waiting, _ in moves]
        self.queues.join(moved, now_s)
        for waiting in moved:
            self.backlog.move(waiting.entry.request.id, waiting.group.work)

    def remove(self, request_id: str, *, popped: bool = False) -> QueueEntry | None:
        """Removes a request, None if it does not wait. `popped`: its policy has handed it out already."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        if waiting.place == "expired":
            self._expired.discard(request_id)
        elif not popped:
            waiting.group.take(waiting)
        del waiting.group.members[request_id]
        self.backlog.discard(request_id)
        self._overdue_at.discard(request_id)
        self._deadlines.discard(request_id)
        self._tenancy.left(waiting.entry.request)
        self.tokens -= waiting.entry.request.prompt_tokens
        self.overdue -= waiting.overdue
        self.long -= waiting.long
        return waiting.entry

    def serve(self, waiting: QueuedRequest, now_s: float) -> None:
        """Removes a request that is sent out of its turn, and has its policy charge it all the same."""
        group, request_id = waiting.group, waiting.entry.request.id
        (group.late if waiting.place == "late" else group.ready).policy.serve(request_id, now_s)
        self.remove(request_id, popped=True)

    # -- time -------------------------------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Moves requests that have become overdue or reached their deadline, at most `SWEEP` of either kind.

        A deadline has passed once it is reached, a TTFT target only after it. Before that it forms the groups anew if they are `unsettled`.
        """
        self.settle(now_s)
        overdue, deadlines = self._overdue_at, self._deadlines
        self.behind = False
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
            waiting.group.became_late(now_s)
            self.backlog.put(waiting.entry, waiting.group.work, overdue=True)
            if waiting.place == "ready":
                waiting.group.ready.policy.on_overdue(waiting.entry, now_s)
            if self._demoting:
                waiting.group.take(waiting)
                waiting.place = "late"
                waiting.group.put(waiting, now_s)
                self._watch_deadline(waiting, overdue=True)
        else:
            self.behind = True
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
        else:
            self.behind = True

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
        for group in self.queues.groups:
            while len(taken) < limit and (entry := group.late.pop(now_s) or group.late.pop_limited(now_s, capped=True)) is not None:
                group.given_up.ended(dropped=True)
                # A request that is dropped was not served, so its tenant is not charged.
                group.late.policy.undo_pop(entry, now_s)
                self.remove(entry.request.id)
                taken.append(entry)
        taken.sort(key=lambda entry: entry.seq)
        return taken

    # -- changes ----------------------------------------------------------------------------------------------------------

    def set_policy(self, name: str, parameters: Mapping[str, float] | None, now_s: float) -> bool:
        """See `ModelQueues.set_policy`; adopts the split between short and long of the new policy."""
        changed = self.queues.set_policy(name, parameters, now_s)
        if changed and self.queues.long_split != self._split.parameters:
            self._split = ServiceSplit(*self.queues.long_split)
            self._split.learn_all([entry.estimates.total_ms for entry in self.entries()])
            for waiting in self._waiting.values():
                self._count_long(waiting)
        return changed

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Gives every waiting entry its tenant's current weight, and the tenants' accounts these `weights`, which have changed."""
        for group in self.queues.groups:
            group.reweigh(weights)
        for waiting in self._waiting.values():
            waiting.entry.weight = self.weights.get(waiting.entry.request.tenant, waiting.entry.weight)

    def regroup(self, now_s: float, instances: Sequence[Instance] | None = None) -> None:
        """See `ModelQueues.regroup`; the work of requests that change their group goes with them."""
        self.unsettled = False
        for waiting in self.queues.regroup(now_s, instances):
            self.backlog.move(waiting.entry.request.id, waiting.group.work)

    def settle(self, now_s: float) -> None:
        """Forms the groups anew, once for all instances that have changed the models they serve since the last time."""
        if self.unsettled:
            self.regroup(now_s)

    def held(self) -> int:
        """How many requests the structures hold in total; equal to `len` unless a request was lost or counted twice."""
        return sum(group.held for group in self.queues.groups) + len(self._expired)

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _latest_start_s(self, waiting: QueuedRequest) -> float:
        """When the request must be dispatched to meet its TTFT target, by the current measurements of the instances."""
        entry = waiting.entry
        shown_ms = waiting.group.instances.first_token_ms(entry) if self._shown else None
        return entry.ttft_deadline_s - needed_ms(self._least_ms(waiting), shown_ms, entry.estimates.slo.ttft_ms) / 1000.0

    def _least_ms(self, waiting: QueuedRequest) -> float:
        """The least time to its first token: a share of the prediction or of the measured prefill time, whichever is shorter."""
        return self._service_share * min(waiting.group.instances.prefill_ms(waiting.entry), waiting.entry.estimates.ttft_ms)

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
