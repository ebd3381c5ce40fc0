"""Everything that waits: who is where, who is overdue, whose deadline has passed."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from controller.core.types import Estimates
from controller.scheduling.instance import Instance
from controller.scheduling.lazy_heap import LazyHeap
from controller.scheduling.policies.fcfs import Fcfs
from controller.scheduling.policies.two_lane import TwoLane
from controller.scheduling.pool import make_policy, rebuild
from controller.scheduling.queue_entry import QueueEntry, QueuePolicy
from controller.scheduling.service_split import ServiceSplit
from controller.scheduling.tenancy import Tenancy
from controller.scheduling.tenant_gate import gated

Place = Literal["ready", "late", "expired"]


class Group:
    """The queue of all requests that the same instances can serve; one in all where every instance serves every model.

    Requests of different groups never stand in each other's way: a model whose instances are full or gone holds up no other.

    Attributes:
        instances: Those that serve these requests, in the order of the configuration.
        policy: The discipline over those that wait in order.
        late: Those that were demoted, first come first served.
    """

    __slots__ = ("instances", "late", "policy")

    def __init__(self, instances: Sequence[Instance], policy: QueuePolicy, late: QueuePolicy) -> None:
        self.instances = tuple(instances)
        self.policy = policy
        self.late = late


@dataclass
class Waiting:
    """One waiting request: `place` is the structure that holds it, `overdue` and `long` are what it is counted as."""

    entry: QueueEntry
    group: Group
    place: Place = "ready"
    overdue: bool = False
    long: bool = False


class WaitingRoom:
    """The queue in all its parts. Sweeps cost O(log n) per request that changes its place, nothing for the others.

    Attributes:
        policy_name, hints: The discipline in force.
        tokens: Prompt tokens of all that wait. `overdue`, `long`: how many are overdue, and on the slow side of the split.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        *,
        policy: str,
        hints: Mapping[str, float] | None,
        demoting: bool,
        service_share: float,
        tenancy: Tenancy | None = None,
    ) -> None:
        self._instances = tuple(instances)
        self._tenancy = tenancy
        self._demoting = demoting
        self._service_share = service_share
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._overdue_at: LazyHeap[Waiting] = LazyHeap()
        self._deadlines: LazyHeap[Waiting] = LazyHeap()
        self._expired: dict[str, Waiting] = {}
        self.tokens = 0
        self.overdue = 0
        self.long = 0
        first = make_policy(policy, hints)
        self.policy_name = first.name
        self.hints = dict(first.hints)
        self._split = ServiceSplit(*self._split_hints())
        self.groups: list[Group] = []
        self._by_model: dict[str, Group] = {}
        self._default: Group
        self.regroup(0.0)

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, request_id: str) -> Waiting | None:
        """What waits under that id, None where nothing does."""
        return self._waiting.get(request_id)

    def ids(self) -> Iterator[str]:
        """Ids of all that wait, oldest submission first."""
        return iter(self._waiting)

    def entries(self) -> Iterator[QueueEntry]:
        """All that wait, oldest submission first."""
        return (waiting.entry for waiting in self._waiting.values())

    def group_of(self, model: str) -> Group:
        """The group that requests for this model belong to."""
        return self._by_model.get(model, self._default)

    def oldest_s(self) -> float | None:
        """Arrival of the oldest, None when nobody waits."""
        first = next(iter(self._waiting.values()), None)
        return None if first is None else first.entry.request.arrival_s

    def add(self, entry: QueueEntry, now_s: float, *, returned: bool = False) -> None:
        """Takes a request in; one that is `returned` from an instance stands among the oldest."""
        waiting = Waiting(entry, self.group_of(entry.request.model))
        request_id = entry.request.id
        self._waiting[request_id] = waiting
        if returned:
            self._waiting.move_to_end(request_id, last=False)
        self.tokens += entry.request.prompt_tokens
        waiting.group.policy.push(entry, now_s)
        self._overdue_at.push(request_id, self._latest_start_s(waiting), entry.seq, waiting)
        if entry.request.deadline_s != float("inf"):
            self._deadlines.push(request_id, entry.request.deadline_s, entry.seq, waiting)
        self._split.learn(entry.estimates.total_ms)
        self._count_long(waiting)

    def revise(self, request_id: str, estimates: Estimates, now_s: float) -> bool:
        """Gives a waiting request new estimates and the place they ask for. False where it does not wait."""
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
            self._overdue_at.push(request_id, latest_s, entry.seq, waiting)
        if waiting.place == "ready":
            waiting.group.policy.rekey(entry, now_s)
        elif not waiting.overdue:
            waiting.group.late.discard(request_id)
            waiting.place = "ready"
            waiting.group.policy.push(entry, now_s)
        return True

    def remove(self, request_id: str, *, popped: bool = False) -> QueueEntry | None:
        """Takes a request out, None where it does not wait. `popped`: its policy has handed it out already."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        if not popped:
            self._take_from_place(waiting)
        self._overdue_at.discard(request_id)
        self._deadlines.discard(request_id)
        self.tokens -= waiting.entry.request.prompt_tokens
        self.overdue -= waiting.overdue
        self.long -= waiting.long
        return waiting.entry

    def sweep(self, now_s: float) -> None:
        """Moves what has become overdue or has run out of time. A deadline counts as passed when it is reached, a TTFT target after it."""
        while (due := self._overdue_at.peek()) is not None and due[0] < now_s:
            waiting = due[1]
            request_id = waiting.entry.request.id
            self._overdue_at.discard(request_id)
            waiting.overdue = True
            self.overdue += 1
            if self._demoting:
                waiting.group.policy.discard(request_id)
                waiting.place = "late"
                waiting.group.late.push(waiting.entry, now_s)
        while (due := self._deadlines.peek()) is not None and due[0] <= now_s:
            waiting = due[1]
            request_id = waiting.entry.request.id
            self._deadlines.discard(request_id)
            self._overdue_at.discard(request_id)
            self._take_from_place(waiting)
            waiting.place = "expired"
            self._expired[request_id] = waiting

    def expired(self) -> list[QueueEntry]:
        """Those whose deadline has passed, in the order of arrival; they stay until they are removed."""
        return sorted((waiting.entry for waiting in self._expired.values()), key=lambda entry: entry.seq)

    def late(self) -> list[QueueEntry]:
        """Those that were demoted, in the order of arrival."""
        return sorted((entry for group in self.groups for entry in group.late.entries()), key=lambda entry: entry.seq)

    def set_policy(self, name: str, hints: Mapping[str, float] | None, now_s: float) -> bool:
        """Rebuilds every group's queue under another policy or other hints. False where nothing changes.

        Raises:
            PolicyError: The policy or a hint is not allowed; nothing has changed then.
        """
        fresh = make_policy(name, hints)
        if fresh.name == self.policy_name and fresh.hints == self.hints:
            return False
        self.policy_name = fresh.name
        self.hints = dict(fresh.hints)
        for group in self.groups:
            group.policy = rebuild(group.policy, gated(make_policy(name, hints), self._tenancy), now_s)
        if self._split_hints() != self._split.hints:
            self._split = ServiceSplit(*self._split_hints())
            self._split.learn_all([waiting.entry.estimates.total_ms for waiting in self._waiting.values()])
            for waiting in self._waiting.values():
                self._count_long(waiting)
        return True

    def regroup(self, now_s: float) -> None:
        """Builds the groups anew after instances have changed the models they serve."""
        models = sorted({model for instance in self._instances for model in instance.models or ()})
        by_instances: dict[tuple[str, ...], Group] = {}

        def group(instances: list[Instance]) -> Group:
            key = tuple(instance.name for instance in instances)
            policy = gated(make_policy(self.policy_name, self.hints), self._tenancy)
            return by_instances.setdefault(key, Group(instances, policy, gated(Fcfs({}), self._tenancy)))

        self._default = group([instance for instance in self._instances if instance.models is None])
        self._by_model = {model: group([i for i in self._instances if i.serves(model)]) for model in models}
        self.groups = list(by_instances.values())
        for waiting in sorted(self._waiting.values(), key=lambda waiting: waiting.entry.seq):
            waiting.group = self.group_of(waiting.entry.request.model)
            if waiting.place == "ready":
                waiting.group.policy.push(waiting.entry, now_s)
            elif waiting.place == "late":
                waiting.group.late.push(waiting.entry, now_s)

    def held(self) -> int:
        """How many the structures hold, all told; equal to `len` unless something was lost or doubled."""
        return sum(len(group.policy) + len(group.late) for group in self.groups) + len(self._expired)

    def _take_from_place(self, waiting: Waiting) -> None:
        request_id = waiting.entry.request.id
        if waiting.place == "ready":
            waiting.group.policy.discard(request_id)
        elif waiting.place == "late":
            waiting.group.late.discard(request_id)
        else:
            self._expired.pop(request_id, None)

    def _latest_start_s(self, waiting: Waiting) -> float:
        """When it must be dispatched to meet its TTFT target.

        Of prediction and of what the instances have shown when a prompt had the prefill to itself, the fastest counts: a
        request that is condemned wrongly would have made it.
        """
        entry = waiting.entry
        service_ms = min((instance.prefill_ms(entry) for instance in waiting.group.instances), default=entry.estimates.ttft_ms)
        return entry.ttft_deadline_s - self._service_share * min(service_ms, entry.estimates.ttft_ms) / 1000.0

    def _count_long(self, waiting: Waiting) -> None:
        is_long = self._split.is_long(waiting.entry.estimates.total_ms)
        self.long += is_long - waiting.long
        waiting.long = is_long

    def _split_hints(self) -> tuple[float, float]:
        hints = {**TwoLane.default_hints, **(self.hints if self.policy_name == TwoLane.name else {})}
        return hints["threshold_ms"], hints["slow_quantile"]
