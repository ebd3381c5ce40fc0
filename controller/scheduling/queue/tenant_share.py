"""Keeps the requests of a tenant at its limit of slots from blocking those of other tenants, under any policy."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.queue.tenant_accounts import TenantAccounts
from hmas.controller.scheduling.queue.tenant_queues import TenantQueues

TENANT_SHARE = "tenant share"


def sharing(policy: QueuePolicy, accounts: TenantAccounts) -> QueuePolicy:
    """The policy itself if it shares service among tenants by weight, else with `TenantQueues` around it."""
    return policy if policy.shares_tenants else TenantQueues(policy, accounts)


def tenant_queues(policy: QueuePolicy) -> TenantQueues | None:
    """The queues by tenant inside a policy as a queue holds it, None if the policy shares by itself."""
    inner = policy.inner if isinstance(policy, TenantShareLimiter) else policy
    return inner if isinstance(inner, TenantQueues) else None


class TenantShareLimiter(QueuePolicy):
    """A policy around a policy that shares among tenants. It closes a tenant at its limit there, and opens it again below the limit.

    So a queue full of a capped tenant's requests costs a planning pass a constant, not its length.

    Costs: those of the policy, and O(closed tenants) for the first `pop` after a slot was taken or given back.
    """

    name: ClassVar[str] = "tenant-share"
    shares_tenants: ClassVar[bool] = True

    def __init__(self, inner: QueuePolicy, tenancy: Tenancy) -> None:
        """Takes a policy whose `shares_tenants` is true."""
        super().__init__(inner.parameters)
        self.inner = inner
        self._tenancy = tenancy
        self._closed: dict[str, None] = {}
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
        if self._at_limit(entry.request.tenant):
            entry.hold(TENANT_SHARE)
        self.inner.push(entry, now_s)

    def load(self, entries: Iterable[QueueEntry], now_s: float) -> None:
        """Adds many entries at once."""
        self.inner.load(entries, now_s)

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry that need not let others go first, None if there is none."""
        if self._seen != self._tenancy.version:
            self._seen = self._tenancy.version
            for tenant in [one for one in self._closed if not self._at_limit(one)]:
                del self._closed[tenant]
                self.inner.open_tenant(tenant, now_s)
        while (entry := self.inner.pop(now_s)) is not None:
            tenant = entry.request.tenant
            if not self._at_limit(tenant, entry.request.sequences):
                return entry
            entry.hold(TENANT_SHARE)
            self.inner.undo_pop(entry, now_s)
            self._closed[tenant] = None
            self.inner.close_tenant(tenant, now_s)
        return None

    def pop_limited(self, now_s: float, *, capped: bool = False) -> QueueEntry | None:
        """Takes an entry of a tenant at its share, for slots that no other request needs; None if there is none.

        Of several such tenants the one least over its share goes first.
        """
        tenants = [tenant for tenant in self._closed if capped or not self._tenancy.capped(tenant)]
        for tenant in sorted(tenants, key=self._tenancy.fill):
            self.inner.open_tenant(tenant, now_s)
            entry = self.inner.pop(now_s)
            if entry is not None and not capped and self._tenancy.capped(tenant, entry.request.sequences):
                self.inner.undo_pop(entry, now_s)
                entry = None
            self.inner.close_tenant(tenant, now_s)
            if entry is not None:
                return entry
        return None

    def undo_pop(self, entry: QueueEntry, now_s: float) -> None:
        """Returns an entry that was just popped to its former place."""
        self.inner.undo_pop(entry, now_s)

    def discard(self, request_id: str) -> QueueEntry | None:
        """Takes an entry out by id, None if it is not here."""
        return self.inner.discard(request_id)

    def rekey(self, entry: QueueEntry, now_s: float) -> None:
        """Updates the place of an entry after its estimates have changed."""
        self.inner.rekey(entry, now_s)

    def on_overdue(self, entry: QueueEntry, now_s: float) -> None:
        """Passes the note that an entry has become too late to the policy."""
        self.inner.on_overdue(entry, now_s)

    def on_finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Passes the end of a request to the policy."""
        self.inner.on_finished(entry, output_tokens, now_s)

    def rank(self, request_id: str) -> int | None:
        """How many would go before it, by the policy's estimate."""
        return self.inner.rank(request_id)

    def entries(self) -> Iterator[QueueEntry]:
        """All waiting entries, in no particular order."""
        return self.inner.entries()

    def __len__(self) -> int:
        return len(self.inner)

    def close_tenant(self, tenant: str, now_s: float) -> None:
        """Passes it to the policy."""
        self.inner.close_tenant(tenant, now_s)

    def open_tenant(self, tenant: str, now_s: float) -> None:
        """Passes it to the policy, unless the tenant is at its limit."""
        if tenant not in self._closed:
            self.inner.open_tenant(tenant, now_s)

    def _at_limit(self, tenant: str, sequences: int = 1) -> bool:
        return tenant in self._tenancy.bounded and self._tenancy.closed(tenant, sequences)
