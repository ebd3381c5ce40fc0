"""Keeps the requests of a tenant at its share from blocking those of other tenants, under any policy."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy

TENANT_SHARE = "tenant share"
SHOWN = 8
"""Most entries of one bounded tenant that are in the shared queue at once: as many as a planning pass may pass."""


class TenantShareLimiter(QueuePolicy):
    """A policy around a policy. Entries of tenants without a limit on slots go straight through.

    Of a bounded tenant only the first few entries are in the shared queue; the others wait aside, in a queue of the tenant's own under the
    same policy, so that the policy decides the order within the tenant. Once the tenant is at its share, those few go aside too when they
    reach the head. So a queue full of a capped tenant's requests costs a planning pass a constant, not its length, and a request is moved a
    bounded number of times for each slot that its tenant gets.

    Within a bounded tenant, a newcomer that ranks better than the entries already in the shared queue comes after them: `SHOWN` at most.

    Costs: O(log n) a call, and O(bounded tenants that wait) for the first `pop` after a slot was taken or given back.
    """

    name: ClassVar[str] = "tenant-share"

    def __init__(self, inner: QueuePolicy, tenancy: Tenancy) -> None:
        """Takes any policy; others like it are made as tenants need them. Entries in it are not limited until `on_limits` places them."""
        super().__init__(inner.parameters)
        self.inner = inner
        self._tenancy = tenancy
        self._aside: dict[str, QueuePolicy] = {}
        self._aside_of: dict[str, str] = {}
        self._shown: dict[str, dict[str, QueueEntry]] = {}
        self._seen = -1

    @property
    def cost_threshold(self) -> float:
        """That of the policy."""
        return self.inner.cost_threshold

    @property
    def long_split(self) -> tuple[float, float]:
        """That of the policy."""
        return self.inner.long_split

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry."""
        tenant = entry.request.tenant
        if tenant not in self._tenancy.bounded:
            self.inner.push(entry, now_s)
        elif tenant in self._aside or len(self._shown.get(tenant, ())) >= SHOWN or self._tenancy.closed(tenant):
            self._put_aside(entry, tenant, now_s)
        else:
            self.inner.push(entry, now_s)
            self._show(entry, tenant)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Adds many entries at once."""
        through: list[QueueEntry] = []
        aside: dict[str, list[QueueEntry]] = {}
        for entry in entries:
            tenant = entry.request.tenant
            if tenant in self._tenancy.bounded:
                aside.setdefault(tenant, []).append(entry)
                self._aside_of[entry.request.id] = tenant
            else:
                through.append(entry)
        self.inner.load(through, now_s)
        for tenant, held in aside.items():
            self._queue(tenant).load(held, now_s)
        self._seen = -1

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry that need not let others go first, None if there is none."""
        self._refill(now_s)
        while (entry := self.inner.pop(now_s)) is not None:
            tenant = entry.request.tenant
            if entry.request.id not in self._shown.get(tenant, ()):
                return entry
            if not self._tenancy.closed(tenant, entry.request.sequences):
                self._hide(entry.request.id, tenant)
                return entry
            # The entry goes back to its place first, so that a fair policy takes the charge back.
            self.inner.undo_pop(entry, now_s)
            for request_id, shown in self._shown.pop(tenant).items():
                self.inner.discard(request_id)
                self._put_aside(shown, tenant, now_s)
        return None

    def pop_limited(self, now_s: float, *, capped: bool = False) -> QueueEntry | None:
        """Takes an entry of a tenant at its share, for slots that no other request needs; None if there is none.

        Of several such tenants the one least over its share goes first.
        """
        for tenant in sorted(self._aside, key=self._tenancy.fill):
            if not capped and self._tenancy.capped(tenant):
                continue
            queue = self._aside[tenant]
            entry = queue.pop(now_s)
            assert entry is not None, "a tenant that is listed as waiting aside has an entry"
            if not capped and self._tenancy.capped(tenant, entry.request.sequences):
                queue.undo_pop(entry, now_s)
                continue
            self._came_back(entry, tenant)
            # The entry goes through the shared queue, so that a fair policy charges the tenant for it.
            self.inner.push(entry, now_s)
            return self.inner.pop(now_s)
        return None

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns an entry that was just popped to its former place."""
        self.inner.undo_pop(entry, now_s)
        if entry.request.tenant in self._tenancy.bounded:
            self._show(entry, entry.request.tenant)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        tenant = self._aside_of.pop(request_id, None)
        if tenant is not None:
            entry = self._aside[tenant].discard(request_id)
            self._forget_empty(tenant)
            return entry
        entry = self.inner.discard(request_id)
        if entry is not None and request_id in self._shown.get(entry.request.tenant, ()):
            self._hide(request_id, entry.request.tenant)
            self._seen = -1
        return entry

    def on_limits(self, entry: QueueEntry, now_s: float) -> None:
        """Moves a waiting entry to where its tenant's active limits place it; no effect if it is there."""
        request_id, tenant = entry.request.id, entry.request.tenant
        shown = request_id in self._shown.get(tenant, ())
        if (tenant in self._tenancy.bounded) == (shown or request_id in self._aside_of):
            return
        if shown:
            self._hide(request_id, tenant)
        elif (found := self.discard(request_id)) is not None:
            self.push(found, now_s)

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Updates the place of an entry after its estimates have changed."""
        self._holder(entry.request.id).rekey(entry, now_s)

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:
        """Passes the note that an entry has become too late to the queue that holds it."""
        self._holder(entry.request.id).on_overdue(entry, now_s)

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Passes the end of a request to the inner policy."""
        self.inner.on_finished(entry, output_tokens, now_s)

    def rank(self, request_id: str) -> int | None:
        """How many would go before it. For an entry aside this is an estimate: the shared queue plus its tenant's entries before it."""
        rank = self._holder(request_id).rank(request_id)
        return len(self.inner) + (rank or 0) if request_id in self._aside_of else rank

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        yield from self.inner.entries()
        for queue in self._aside.values():
            yield from queue.entries()

    def __len__(self) -> int:
        return len(self.inner) + len(self._aside_of)

    def _holder(self, request_id: str) -> QueuePolicy:
        """The queue of an entry: its tenant's own one if it waits aside, else the shared one."""
        tenant = self._aside_of.get(request_id)
        return self.inner if tenant is None else self._aside[tenant]

    def _refill(self, now_s: float) -> None:
        """Moves more entries of tenants below their share into the shared queue."""
        if self._seen == self._tenancy.version:
            return
        self._seen = self._tenancy.version
        for tenant in [name for name in self._aside if not self._tenancy.closed(name)]:
            while tenant in self._aside and len(self._shown.get(tenant, ())) < SHOWN:
                entry = self._take(tenant, now_s)
                self.inner.push(entry, now_s)
                self._show(entry, tenant)

    def _put_aside(self, entry: QueueEntry, tenant: str, now_s: float) -> None:
        entry.hold(TENANT_SHARE)
        self._queue(tenant).push(entry, now_s)
        self._aside_of[entry.request.id] = tenant

    def _take(self, tenant: str, now_s: float) -> QueueEntry:
        entry = self._aside[tenant].pop(now_s)
        assert entry is not None, "a tenant that is listed as waiting aside has an entry"
        self._came_back(entry, tenant)
        return entry

    def _came_back(self, entry: QueueEntry, tenant: str) -> None:
        """Notes that an entry no longer waits aside."""
        del self._aside_of[entry.request.id]
        self._forget_empty(tenant)

    def _queue(self, tenant: str) -> QueuePolicy:
        queue = self._aside.get(tenant)
        if queue is None:
            queue = self._aside[tenant] = type(self.inner)(self.inner.parameters)
        return queue

    def _forget_empty(self, tenant: str) -> None:
        if not len(self._aside[tenant]):
            del self._aside[tenant]

    def _show(self, entry: QueueEntry, tenant: str) -> None:
        self._shown.setdefault(tenant, {})[entry.request.id] = entry

    def _hide(self, request_id: str, tenant: str) -> None:
        shown = self._shown[tenant]
        del shown[request_id]
        if not shown:
            del self._shown[tenant]
