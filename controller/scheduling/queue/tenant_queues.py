"""Shares service among tenants by weight under any policy: one queue of the policy for each tenant, and an order of the tenants."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

import msgspec

from hmas.controller.scheduling.policy_base.flow import LEAST_WEIGHT, tokens_of
from hmas.controller.scheduling.policy_base.flow_policy import CHARGES_KEEP
from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.policy_base.recall import Recall

TENANTS_KEPT = 1024
"""Number of tenants above which one that has no request waiting is forgotten when another comes."""


class _Tenant:
    """The waiting requests of one tenant under the policy, and the account of its service.

    Attributes:
        tag: Tokens per weight that it was served since the queue was last empty; the lowest goes next.
        busy_period: The time since the queue was last empty, by number, that the tag belongs to.
        weight: Its weight, as of its newest request.
    """

    __slots__ = ("busy_period", "name", "queue", "tag", "weight")

    def __init__(self, name: str, queue: QueuePolicy) -> None:
        self.name = name
        self.queue = queue
        self.tag = 0.0
        self.busy_period = 0
        self.weight = 1.0


class _Charge(msgspec.Struct, gc=False):
    """What one pop was charged, kept until the request ends. See `hmas.controller.scheduling.policy_base.recall.Charge`."""

    tenant: _Tenant
    amount: float
    weight: float
    busy_period: int


class TenantQueues(QueuePolicy):
    """A policy around a policy that knows no tenants. It orders the tenants; the policy orders the requests of each.

    The order is start-time fair queueing (Goyal, Vin and Cheng, 1996) as under `wfq`: the tenant with the lowest tag goes next, and its tag
    grows by the tokens of the request over the weight, predicted at first and corrected at its end. A tenant that comes back after a pause
    starts at the tag last served, with no claim to what it did not use. Once no request waits, all tenants start level again. So while two
    tenants wait, the service per unit of weight differs by one request of each, and a tenant whose queue is short is served soon, however
    many requests another tenant sends. No request is held back while a slot is free.

    A state that a policy learns, such as the cost threshold of `robust-edf`, is the tenant's own. With one tenant the order is the
    policy's, unchanged.

    Costs: those of the policy, plus O(log t) for each request with t tenants waiting.
    """

    name: ClassVar[str] = "tenant-queues"
    shares_tenants: ClassVar[bool] = True

    def __init__(self, policy: QueuePolicy) -> None:
        """Takes an empty policy. It becomes the first tenant's queue; more like it are made as tenants come."""
        super().__init__(policy.parameters)
        self._policy = policy
        self._tenants: dict[str, _Tenant] = {}
        self._holder: dict[str, _Tenant] = {}
        self._turns: LazyHeap[_Tenant] = LazyHeap()
        self._turn = 0
        self._clock = 0.0
        self._busy_period = 0
        self._size = 0
        self._closed: set[str] = set()
        self._charges: Recall[_Charge] = Recall(CHARGES_KEEP)

    @property
    def cost_threshold(self) -> float:
        """The lowest of the tenants that have requests waiting; of all tenants if none has."""
        queues = [one.queue for one in self._tenants.values()] or [self._policy]
        return min(queue.cost_threshold for queue in [queue for queue in queues if len(queue)] or queues)

    @property
    def long_split(self) -> tuple[float, float]:
        """That of the policy."""
        return self._policy.long_split

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry to its tenant's queue. One that comes back was not served: its charge is dropped."""
        charge = self._charges.take(entry.request.id)
        if charge is not None:
            self._correct(charge, -charge.amount)
        tenant = self._entered(entry)
        before = len(tenant.queue)
        tenant.queue.push(entry, now_s)
        self._took(entry.request.id, tenant, before)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Adds many entries at once."""
        found: dict[str, list[QueueEntry]] = {}
        for entry in entries:
            found.setdefault(entry.request.tenant, []).append(entry)
        for waiting in found.values():
            tenant = self._entered(waiting[-1])
            before = len(tenant.queue)
            tenant.queue.load(waiting, now_s)
            for entry in waiting:
                self._holder[entry.request.id] = tenant
            self._size += len(tenant.queue) - before
            self._stand(tenant)

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry of the tenant with the lowest tag whose policy has one to serve."""
        entry: QueueEntry | None = None
        passed: list[_Tenant] = []
        while entry is None and (tenant := self._turns.pop()) is not None:
            before = len(tenant.queue)
            entry = tenant.queue.pop(now_s)
            self._size += len(tenant.queue) - before
            if entry is None:
                passed.append(tenant)
                continue
            del self._holder[entry.request.id]
            if len(self._tenants) > 1:
                self._charge(tenant, entry)
            self._stand(tenant)
        for tenant in passed:
            self._stand(tenant)
        return entry

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns a popped entry to its place in its tenant's queue, and takes the charge back."""
        tenant = self._tenants.get(entry.request.tenant)
        if tenant is None:
            self.push(entry, now_s)
            return
        charge = self._charges.take(entry.request.id)
        if charge is not None:
            self._correct(charge, -charge.amount)
        before = len(tenant.queue)
        tenant.queue.undo_pop(entry, now_s)
        self._took(entry.request.id, tenant, before)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        tenant = self._holder.pop(request_id, None)
        if tenant is None:
            return None
        before = len(tenant.queue)
        entry = tenant.queue.discard(request_id)
        self._size += len(tenant.queue) - before
        if not len(tenant.queue):
            self._turns.discard(tenant.name)
        return entry

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Moves the entry to the place of its new estimates in its tenant's queue."""
        self._holder[entry.request.id].queue.rekey(entry, now_s)

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:
        """Passes the note that an entry has become too late to its tenant's queue."""
        self._holder[entry.request.id].queue.on_overdue(entry, now_s)

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Replaces the prediction in the charge by the true length, and passes the end to the tenant's queue."""
        charge = self._charges.take(entry.request.id)
        if charge is not None:
            self._correct(charge, tokens_of(entry, output_tokens) / charge.weight - charge.amount)
        tenant = self._tenants.get(entry.request.tenant)
        if tenant is not None:
            tenant.queue.on_finished(entry, output_tokens, now_s)

    def rank(self, request_id: str) -> int | None:
        """An estimate: the entries before it in its tenant's queue, plus those that other tenants get served meanwhile by their weights."""
        mine = self._holder.get(request_id)
        rank = None if mine is None else mine.queue.rank(request_id)
        if mine is None or rank is None:
            return None
        others = [one for one in self._tenants.values() if one is not mine]
        return rank + sum(min(len(one.queue), int((rank + 1) * one.weight / mine.weight)) for one in others)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        for tenant in self._tenants.values():
            yield from tenant.queue.entries()

    def __len__(self) -> int:
        return self._size

    def close_tenant(self, tenant: str) -> None:
        """See `QueuePolicy.close_tenant`."""
        self._closed.add(tenant)
        self._turns.discard(tenant)

    def open_tenant(self, tenant: str, now_s: float) -> None:  # noqa: ARG002  the contract's arguments
        """See `QueuePolicy.open_tenant`. It starts at the tag last served, as after a pause."""
        self._closed.discard(tenant)
        known = self._tenants.get(tenant)
        if known is not None:
            known.tag = max(known.tag, self._clock)
            self._stand(known)

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _entered(self, entry: QueueEntry) -> _Tenant:
        """The entry's tenant; if none of its requests waited, at its place among the tenants."""
        name = entry.request.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(name, self._new_queue())
        if not len(tenant.queue):
            if not self._size:
                self._busy_period += 1
                self._clock = 0.0
            if tenant.busy_period != self._busy_period:
                tenant.busy_period, tenant.tag = self._busy_period, 0.0
            tenant.tag = max(tenant.tag, self._clock)
        tenant.weight = max(LEAST_WEIGHT, entry.weight)
        return tenant

    def _new_queue(self) -> QueuePolicy:
        """An empty queue of the policy."""
        if not self._tenants:
            return self._policy
        if len(self._tenants) >= TENANTS_KEPT:
            idle = next((name for name, one in self._tenants.items() if not len(one.queue)), None)
            if idle is not None:
                del self._tenants[idle]
        return type(self._policy)(self._policy.parameters)

    def _took(self, request_id: str, tenant: _Tenant, before: int) -> None:
        """Books an entry that its tenant's queue has taken; that held `before` entries until then."""
        self._holder[request_id] = tenant
        self._size += len(tenant.queue) - before
        if tenant.name not in self._turns:
            self._stand(tenant)

    def _stand(self, tenant: _Tenant) -> None:
        """Places a tenant among the others by its tag; one without a waiting request, or that is closed, has no place."""
        if len(tenant.queue) and tenant.name not in self._closed:
            self._turn += 1
            self._turns.push(tenant.name, tenant.tag, self._turn, tenant)
        else:
            self._turns.discard(tenant.name)

    def _charge(self, tenant: _Tenant, entry: QueueEntry) -> None:
        weight = max(LEAST_WEIGHT, entry.weight)
        amount = tokens_of(entry, entry.estimates.output_tokens) / weight
        self._charges.note(entry.request.id, _Charge(tenant, amount, weight, tenant.busy_period))
        self._clock = max(self._clock, tenant.tag)
        tenant.tag += amount

    def _correct(self, charge: _Charge, more: float) -> None:
        """Corrects a tenant's account, unless all tenants have started level again since."""
        tenant = charge.tenant
        if charge.busy_period == tenant.busy_period:
            tenant.tag += more
            if tenant.name in self._turns:
                self._stand(tenant)
