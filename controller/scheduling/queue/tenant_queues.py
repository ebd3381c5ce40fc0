"""Shares service among tenants by weight under any policy: a queue of the policy for each account, and the turns of the accounts."""

import math
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import ClassVar

from hmas.controller.scheduling.policy_base.heap import LazyHeap
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.queue.flood_watch import TENANTS_KEPT
from hmas.controller.scheduling.queue.tenant_accounts import COMMON, Account, TenantAccounts


class _Queue:
    """The waiting requests of one account under the policy."""

    __slots__ = ("account", "name", "queue")

    def __init__(self, name: str, queue: QueuePolicy, account: Account) -> None:
        self.name = name
        self.queue = queue
        self.account = account


class TenantQueues(QueuePolicy):
    """A policy around a policy that knows no tenants: a queue of it for each account of `TenantAccounts`, and the turns of the accounts.

    A tenant that has an account of its own is ordered by the policy by itself, and so is what a policy learns, such as the cost threshold
    of `robust-edf`. As long as there is one account the order is the policy's, unchanged.

    Costs: those of the policy, plus O(log t) for each request with t accounts that have requests waiting.

    Attributes:
        queues: The queue of each account that has had requests here, by the account's name.
        turns: The queues that have requests waiting and are not closed, the lowest tag first.
    """

    name: ClassVar[str] = "tenant-queues"
    shares_tenants: ClassVar[bool] = True

    def __init__(self, policy: QueuePolicy, accounts: TenantAccounts) -> None:
        """Takes an empty policy. It becomes the first queue; more like it are made as accounts come."""
        super().__init__(policy.parameters)
        self._policy = policy
        self._accounts = accounts
        accounts.queues.append(self)
        self.queues: dict[str, _Queue] = {}
        self._holder: dict[str, _Queue] = {}
        self.turns: LazyHeap[_Queue] = LazyHeap()
        self._alone: _Queue | None = None
        self._size = 0
        self._closed: set[str] = set()

    @property
    def cost_threshold(self) -> float:
        """The lowest of the queues that have requests waiting; of all if none has."""
        queues = [one.queue for one in self.queues.values()] or [self._policy]
        return min(queue.cost_threshold for queue in [queue for queue in queues if len(queue)] or queues)

    @property
    def long_split(self) -> tuple[float, float]:
        """That of the policy."""
        return self._policy.long_split

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry to its tenant's queue. One that comes back was not served: its charge is dropped."""
        self._accounts.take_back(entry.request.id)
        tenant = self._of(entry.request.tenant)
        self._accounts.comes(tenant.account, entry, now_s)
        tenant.queue.push(entry, now_s)
        self._took(entry.request.id, tenant)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Adds many entries at once."""
        found: dict[str, list[QueueEntry]] = {}
        for entry in entries:
            found.setdefault(self._accounts.of(entry.request.tenant).name, []).append(entry)
        for waiting in found.values():
            # A queue that is made takes the place of an empty one, where there are many: each is filled before the next is made.
            tenant = self._of(waiting[0].request.tenant)
            self._accounts.comes(tenant.account, waiting[-1], now_s)
            before = len(tenant.queue)
            tenant.queue.load(waiting, now_s)
            for entry in waiting:
                self._holder[entry.request.id] = tenant
            # What the policy holds, not what it was given: a policy that loses requests is found by this.
            self._count(tenant, len(tenant.queue) - before)
            self._stand(tenant)

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry of the tenant with the lowest tag whose policy has one to serve."""
        if self._alone is not None:
            return self._pop_of(self._alone, now_s)
        entry: QueueEntry | None = None
        passed: list[_Queue] = []
        while entry is None and self.lowest_tag() < math.inf:
            tenant = self.turns.pop()
            assert tenant is not None, "a tenant with a tag has a place"
            entry = self._pop_of(tenant, now_s)
            if entry is None:
                passed.append(tenant)
            else:
                self._stand(tenant)
        for tenant in passed:
            self._stand(tenant)
        return entry

    def lowest_tag(self) -> float:
        """The tag of the tenant that goes next, infinite if none waits. A tag that the other queue of the accounts has moved counts."""
        if self._alone is not None:
            return self._alone.account.tag if len(self._alone.queue) else math.inf
        while (found := self.turns.peek()) is not None:
            if found[0] == found[1].account.tag:
                return found[0]
            self._stand(found[1])
        return math.inf

    def owed_tag(self) -> float:
        """The lowest tag of an account that is owed service: any where weights differ, else the common one, that of no flood."""
        lowest, first = self.lowest_tag(), self.turns.peek()
        common = first is None or first[1].name == COMMON
        return lowest if self._accounts.strict or common else math.inf

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns a popped entry to its place in its tenant's queue, and takes the charge back."""
        self._accounts.take_back(entry.request.id)
        tenant = self._of(entry.request.tenant)
        tenant.queue.undo_pop(entry, now_s)
        self._took(entry.request.id, tenant)
        self._stand(tenant)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        tenant = self._holder.pop(request_id, None)
        if tenant is None:
            return None
        entry = tenant.queue.discard(request_id)
        self._count(tenant, -1)
        if not len(tenant.queue):
            self.turns.discard(tenant.name)
        return entry

    def serve(self, request_id: str, now_s: float) -> QueueEntry | None:
        """Takes out an entry that is served out of turn, and charges its tenant's account."""
        tenant = self._holder.pop(request_id, None)
        if tenant is None:
            return None
        entry = tenant.queue.serve(request_id, now_s)
        self._count(tenant, -1)
        if entry is not None:
            self._accounts.charge(tenant.account, entry, now_s)
        self._stand(tenant)
        return entry

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Moves the entry to the place of its new estimates in its tenant's queue."""
        self._holder[entry.request.id].queue.rekey(entry, now_s)

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:
        """Passes the note that an entry has become too late to its tenant's queue."""
        self._holder[entry.request.id].queue.on_overdue(entry, now_s)

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Passes the end to the accounts, and to the tenant's own queue and the common one."""
        self._accounts.finished(entry, output_tokens)
        tenant = self._of(entry.request.tenant)
        # The tenant may have got a queue of its own, or given it up, while the request ran. The queue that it does not come from knows
        # nothing of it, and its policy ignores it.
        for queue in [one.queue for name in (COMMON, entry.request.tenant) if (one := self.queues.get(name)) is not None]:
            queue.on_finished(entry, output_tokens, now_s)
        if tenant.name in self.turns:
            self._stand(tenant)

    def rank(self, request_id: str) -> int | None:
        """An estimate: the entries before it in its tenant's queue, plus those that other tenants get served meanwhile by their weights."""
        mine = self._holder.get(request_id)
        rank = None if mine is None else mine.queue.rank(request_id)
        if mine is None or rank is None:
            return None
        others = [one for one in self.queues.values() if one is not mine]
        return rank + sum(min(len(one.queue), int((rank + 1) * one.account.weight / mine.account.weight)) for one in others)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        for tenant in self.queues.values():
            yield from tenant.queue.entries()

    def __len__(self) -> int:
        return self._size

    def close_tenant(self, tenant: str, now_s: float) -> None:
        """See `QueuePolicy.close_tenant`."""
        self._accounts.separate((tenant,), now_s)
        self._closed.add(tenant)
        self.turns.discard(tenant)

    def open_tenant(self, tenant: str, now_s: float) -> None:  # noqa: ARG002  the contract's arguments
        """See `QueuePolicy.open_tenant`."""
        self._closed.discard(tenant)
        known = self.queues.get(tenant)
        if known is not None:
            self._accounts.again(known.account)
            self._stand(known)

    def moved(self, tenant: str) -> None:
        """Places a tenant anew whose tag was changed."""
        if (known := self.queues.get(tenant)) is not None and tenant in self.turns:
            self._stand(known)

    def separate(self, tenants: frozenset[str], now_s: float) -> None:
        """Moves the waiting entries of tenants that have got accounts of their own from the common queue to queues of their own. O(n)."""
        common = self.queues.get(COMMON)
        moved = [] if common is None else [entry for entry in common.queue.entries() if entry.request.tenant in tenants]
        moved.sort(key=attrgetter("seq"))
        for entry in moved:
            self.discard(entry.request.id)
        self.load(moved, now_s)

    def holds(self, tenant: str) -> bool:
        """Whether requests of a tenant wait in a queue of its own."""
        own = self.queues.get(tenant)
        return own is not None and len(own.queue) > 0

    def leave(self) -> None:
        """Takes its requests off the accounts: another queue has taken them over."""
        self._accounts.queues.remove(self)
        for tenant in self.queues.values():
            self._accounts.count(tenant.account, -len(tenant.queue))

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _of(self, tenant: str) -> _Queue:
        """The queue of the account that a tenant's requests go to."""
        if self._alone is not None and tenant not in self._accounts.own:
            return self._alone
        account = self._accounts.of(tenant)
        found = self.queues.get(account.name)
        if found is None:
            queue = type(self._policy)(self._policy.parameters) if self.queues else self._policy
            if len(self.queues) > TENANTS_KEPT:
                idle = next((name for name, one in self.queues.items() if name != COMMON and not len(one.queue)), None)
                if idle is not None:
                    del self.queues[idle]
            found = self.queues[account.name] = _Queue(account.name, queue, account)
            before, self._alone = self._alone, found if len(self.queues) == 1 and account.name == COMMON else None
            if before is not None:
                self._stand(before)
        elif found.account is not account and not len(found.queue):
            found.account = account
        return found

    def _pop_of(self, tenant: _Queue, now_s: float) -> QueueEntry | None:
        """Takes the next entry of one queue and charges its account."""
        entry = tenant.queue.pop(now_s)
        if entry is not None:
            self._count(tenant, -1)
            del self._holder[entry.request.id]
            self._accounts.charge(tenant.account, entry, now_s)
        return entry

    def _took(self, request_id: str, tenant: _Queue) -> None:
        """Books an entry that its tenant's queue has taken."""
        self._holder[request_id] = tenant
        self._count(tenant, 1)
        if self._alone is None and tenant.name not in self.turns:
            self._stand(tenant)

    def _count(self, tenant: _Queue, more: int) -> None:
        self._size += more
        self._accounts.count(tenant.account, more)

    def _stand(self, tenant: _Queue) -> None:
        """Places a tenant among the others by its tag; one without a waiting request, or that is closed, has no place."""
        if self._alone is not None:
            return
        if len(tenant.queue) and tenant.name not in self._closed:
            self.turns.push(tenant.name, tenant.account.tag, tenant.account.turn, tenant)
        else:
            self.turns.discard(tenant.name)
