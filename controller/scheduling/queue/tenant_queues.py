"""Shares service among tenants by weight under any policy: one queue of the policy for each tenant, and an order of the tenants."""

import math
from collections.abc import Iterable, Iterator
from typing import ClassVar

from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.queue.tenant_accounts import TENANTS_KEPT, Account, TenantAccounts


class _Tenant:
    """The waiting requests of one tenant under the policy."""

    __slots__ = ("account", "name", "queue")

    def __init__(self, name: str, queue: QueuePolicy, account: Account) -> None:
        self.name = name
        self.queue = queue
        self.account = account


class TenantQueues(QueuePolicy):
    """A policy around a policy that knows no tenants. The accounts order the tenants; the policy orders the requests of each.

    While two tenants wait, each gets service in proportion to its weight, however many requests the other sends; a tenant alone gets all.
    A state that a policy learns, such as the cost threshold of `robust-edf`, is the tenant's own. With one tenant the order is the
    policy's, unchanged.

    Costs: those of the policy, plus O(log t) for each request with t tenants waiting.

    Attributes:
        tenants: The tenants that have a queue here, by name. With `TENANTS_KEPT` of them, a new one replaces the first that has nothing
            waiting.
        turns: The tenants that have requests waiting and are not closed, the lowest tag first.
    """

    name: ClassVar[str] = "tenant-queues"
    shares_tenants: ClassVar[bool] = True

    def __init__(self, policy: QueuePolicy, accounts: TenantAccounts) -> None:
        """Takes an empty policy. It becomes the first tenant's queue; more like it are made as tenants come."""
        super().__init__(policy.parameters)
        self._policy = policy
        self._accounts = accounts
        accounts.queues.append(self)
        self.tenants: dict[str, _Tenant] = {}
        self._holder: dict[str, _Tenant] = {}
        self.turns: LazyHeap[_Tenant] = LazyHeap()
        self._size = 0
        self._closed: set[str] = set()

    @property
    def cost_threshold(self) -> float:
        """The lowest of the tenants that have requests waiting; of all tenants if none has."""
        queues = [one.queue for one in self.tenants.values()] or [self._policy]
        return min(queue.cost_threshold for queue in [queue for queue in queues if len(queue)] or queues)

    @property
    def long_split(self) -> tuple[float, float]:
        """That of the policy."""
        return self._policy.long_split

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry to its tenant's queue. One that comes back was not served: its charge is dropped."""
        self._accounts.take_back(entry.request.id)
        tenant = self._tenant(entry.request.tenant)
        self._accounts.comes(tenant.account, entry, now_s)
        before = len(tenant.queue)
        tenant.queue.push(entry, now_s)
        self._took(entry.request.id, tenant, before)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Adds many entries at once."""
        found: dict[str, list[QueueEntry]] = {}
        for entry in entries:
            found.setdefault(entry.request.tenant, []).append(entry)
        for waiting in found.values():
            tenant = self._tenant(waiting[0].request.tenant)
            self._accounts.comes(tenant.account, waiting[-1], now_s)
            before = len(tenant.queue)
            tenant.queue.load(waiting, now_s)
            for entry in waiting:
                self._holder[entry.request.id] = tenant
            self._count(tenant, before)
            self._stand(tenant)

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry of the tenant with the lowest tag whose policy has one to serve."""
        entry: QueueEntry | None = None
        passed: list[_Tenant] = []
        while entry is None and self.lowest_tag() < math.inf:
            tenant = self.turns.pop()
            assert tenant is not None, "a tenant with a tag has a place"
            before = len(tenant.queue)
            entry = tenant.queue.pop(now_s)
            if entry is None:
                passed.append(tenant)
                continue
            self._count(tenant, before)
            del self._holder[entry.request.id]
            self._accounts.charge(tenant.account, entry, now_s)
            self._stand(tenant)
        for tenant in passed:
            self._stand(tenant)
        return entry

    def lowest_tag(self) -> float:
        """The tag of the tenant that goes next, infinite if none waits. A tag that the other queue of the accounts has moved counts."""
        while (found := self.turns.peek()) is not None:
            if found[0] == found[1].account.tag:
                return found[0]
            self._stand(found[1])
        return math.inf

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns a popped entry to its place in its tenant's queue, and takes the charge back."""
        self._accounts.take_back(entry.request.id)
        tenant = self._tenant(entry.request.tenant)
        before = len(tenant.queue)
        tenant.queue.undo_pop(entry, now_s)
        self._took(entry.request.id, tenant, before)
        self._stand(tenant)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        tenant = self._holder.pop(request_id, None)
        if tenant is None:
            return None
        before = len(tenant.queue)
        entry = tenant.queue.discard(request_id)
        self._count(tenant, before)
        if not len(tenant.queue):
            self.turns.discard(tenant.name)
        return entry

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Moves the entry to the place of its new estimates in its tenant's queue."""
        self._holder[entry.request.id].queue.rekey(entry, now_s)

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:
        """Passes the note that an entry has become too late to its tenant's queue."""
        self._holder[entry.request.id].queue.on_overdue(entry, now_s)

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Passes the end to the accounts and to the tenant's queue."""
        self._accounts.finished(entry, output_tokens)
        tenant = self.tenants.get(entry.request.tenant)
        if tenant is not None:
            tenant.queue.on_finished(entry, output_tokens, now_s)
            if tenant.name in self.turns:
                self._stand(tenant)

    def rank(self, request_id: str) -> int | None:
        """An estimate: the entries before it in its tenant's queue, plus those that other tenants get served meanwhile by their weights."""
        mine = self._holder.get(request_id)
        rank = None if mine is None else mine.queue.rank(request_id)
        if mine is None or rank is None:
            return None
        others = [one for one in self.tenants.values() if one is not mine]
        return rank + sum(min(len(one.queue), int((rank + 1) * one.account.weight / mine.account.weight)) for one in others)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        for tenant in self.tenants.values():
            yield from tenant.queue.entries()

    def __len__(self) -> int:
        return self._size

    def close_tenant(self, tenant: str) -> None:
        """See `QueuePolicy.close_tenant`."""
        self._closed.add(tenant)
        self.turns.discard(tenant)

    def open_tenant(self, tenant: str, now_s: float) -> None:  # noqa: ARG002  the contract's arguments
        """See `QueuePolicy.open_tenant`."""
        self._closed.discard(tenant)
        known = self.tenants.get(tenant)
        if known is not None:
            self._accounts.again(known.account)
            self._stand(known)

    def leave(self) -> None:
        """Takes its requests off the accounts: another queue has taken them over."""
        self._accounts.queues.remove(self)
        for tenant in self.tenants.values():
            self._accounts.count(tenant.account, -len(tenant.queue))

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _tenant(self, name: str) -> _Tenant:
        tenant = self.tenants.get(name)
        if tenant is None:
            queue = type(self._policy)(self._policy.parameters) if self.tenants else self._policy
            if len(self.tenants) >= TENANTS_KEPT:
                idle = next((known for known, one in self.tenants.items() if not len(one.queue)), None)
                if idle is not None:
                    del self.tenants[idle]
            tenant = self.tenants[name] = _Tenant(name, queue, self._accounts.of(name))
        elif not tenant.account.waiting:
            tenant.account = self._accounts.of(name)
        return tenant

    def _took(self, request_id: str, tenant: _Tenant, before: int) -> None:
        """Books an entry that its tenant's queue has taken; that held `before` entries until then."""
        self._holder[request_id] = tenant
        self._count(tenant, before)
        if tenant.name not in self.turns:
            self._stand(tenant)

    def _count(self, tenant: _Tenant, before: int) -> None:
        more = len(tenant.queue) - before
        self._size += more
        self._accounts.count(tenant.account, more)

    def _stand(self, tenant: _Tenant) -> None:
        """Places a tenant among the others by its tag; one without a waiting request, or that is closed, has no place."""
        if len(tenant.queue) and tenant.name not in self._closed:
            self.turns.push(tenant.name, tenant.account.tag, tenant.account.turn, tenant)
        else:
            self.turns.discard(tenant.name)
