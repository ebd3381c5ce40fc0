"""Keeps the requests of a tenant at its limit of slots from blocking those of other tenants, under any policy."""

from hmas.controller.scheduling.admission.quotas import Tenancy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.queue.tenant_accounts import TenantAccounts
from hmas.controller.scheduling.queue.tenant_queues import TenantQueues

TENANT_SHARE = "tenant share"


def sharing(policy: QueuePolicy, accounts: TenantAccounts) -> QueuePolicy:
    """The policy itself if it shares service among tenants by weight, else with `TenantQueues` around it."""
    return policy if policy.shares_tenants else TenantQueues(policy, accounts)


class TenantShareLimiter:
    """Takes requests out of a policy that shares among tenants. It closes a tenant at its limit there, and opens it again below the limit.

    So a queue full of a capped tenant's requests costs a planning pass a constant, not its length.

    Costs: those of the policy, and O(closed tenants) for the first `pop` after a slot was taken or given back.

    Attributes:
        policy: The policy, which holds the requests.
    """

    __slots__ = ("_closed", "_seen", "_tenancy", "policy")

    def __init__(self, policy: QueuePolicy, tenancy: Tenancy) -> None:
        """Takes a policy whose `shares_tenants` is true."""
        self.policy = policy
        self._tenancy = tenancy
        self._closed: dict[str, None] = {}
        self._seen = -1

    def push(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a waiting entry to the policy, and notes what it waits for if its tenant is at its limit."""
        if self._at_limit(entry.request.tenant):
            entry.hold(TENANT_SHARE)
        self.policy.push(entry, now_s)

    def pop(self, now_s: float) -> QueueEntry | None:
        """Takes the next entry that need not let others go first, None if there is none."""
        if self._seen != self._tenancy.version:
            self._seen = self._tenancy.version
            for tenant in [one for one in self._closed if not self._at_limit(one)]:
                del self._closed[tenant]
                self.policy.open_tenant(tenant, now_s)
        while (entry := self.policy.pop(now_s)) is not None:
            tenant = entry.request.tenant
            if not self._at_limit(tenant, entry.request.sequences):
                return entry
            entry.hold(TENANT_SHARE)
            self.policy.undo_pop(entry, now_s)
            self._closed[tenant] = None
            self.policy.close_tenant(tenant, now_s)
        return None

    def pop_limited(self, now_s: float, *, capped: bool = False) -> QueueEntry | None:
        """Takes an entry of a tenant at its share, for slots that no other request needs; None if there is none.

        Of several such tenants the one least over its share goes first. Called when `pop` has returned None.

        Args:
            now_s: The time.
            capped: Whether an entry may be one of a tenant at its absolute limit: it is to be given up, not served.
        """
        tenants = [tenant for tenant in self._closed if capped or not self._tenancy.capped(tenant)]
        for tenant in sorted(tenants, key=self._tenancy.fill):
            self.policy.open_tenant(tenant, now_s)
            entry = self.policy.pop(now_s)
            if entry is not None and not capped and self._tenancy.capped(tenant, entry.request.sequences):
                self.policy.undo_pop(entry, now_s)
                entry = None
            self.policy.close_tenant(tenant, now_s)
            if entry is not None:
                return entry
        return None

    def open_tenant(self, tenant: str, now_s: float) -> None:
        """Lets a tenant take part again that the policy has closed for another reason, unless it is at its limit."""
        if tenant not in self._closed:
            self.policy.open_tenant(tenant, now_s)

    def _at_limit(self, tenant: str, sequences: int = 1) -> bool:
        return tenant in self._tenancy.bounded and self._tenancy.closed(tenant, sequences)
