"""The accounts of tenants that share service by weight: what each was served, and which of them goes next."""

import math
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from hmas.controller.scheduling.policy_base.flow import LEAST_WEIGHT
from hmas.controller.scheduling.policy_base.flow_policy import CHARGES_KEEP
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.recall import Recall

if TYPE_CHECKING:
    from hmas.controller.scheduling.queue.tenant_queues import TenantQueues

TENANTS_KEPT = 1024
"""Number of tenants above which one that has no request waiting is forgotten when another comes."""
CREDIT_S = 5.0
"""A tenant that comes back may catch up on what it left of its share in these last seconds: requests come in bursts."""
_SAMPLE_S = 0.25


OUTPUT_WEIGHT = 2.0
"""The service of an output token in prompt tokens, as under `vtc` and `robust-edf`."""


def service_of(prompt_tokens: int, output_tokens: float) -> float:
    """What a request takes from the engines, in prompt tokens."""
    return max(1.0, prompt_tokens + OUTPUT_WEIGHT * output_tokens)


class Account:
    """The account of one tenant.

    Attributes:
        tag: Service per weight that it got since no request waited (see `service_of`); the lowest goes next.
        busy_period: The time since no request waited, by number, that the tag belongs to.
        weight: Its weight, as of its newest request.
        waiting: How many of its requests wait.
        turn: When it had its last turn, by number; of equal tags the one that had it the longest ago goes first.
    """

    __slots__ = ("busy_period", "name", "tag", "turn", "waiting", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = 0
        self.tag = 0.0
        self.busy_period = 0
        self.weight = 1.0
        self.waiting = 0


class _Charge(msgspec.Struct, gc=False):
    """What one pop was charged, kept until the request ends. See `hmas.controller.scheduling.policy_base.recall.Charge`."""

    account: Account
    amount: float
    weight: float
    busy_period: int
    turn_before: int


class TenantAccounts:
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996), as under `wfq`, with a bounded credit for tenants that come back.

    The tenant with the lowest tag goes next, and its tag grows by the service of its request over its weight: at its predicted
    length first, at its true length once it has ended. A tenant that comes back starts at the lowest tag of those that wait, less what its
    weight would have given it in the last `CREDIT_S` seconds, but never below its own tag. So over any time in which it has requests
    waiting, a tenant is served at least its share, less one request and the credit of others. Once no request waits, all start level again.

    One object serves the requests in time and the overdue ones of a queue. O(1) a call, O(log t) with t tenants for one that comes back.

    Attributes:
        queues: The queues that use these accounts.
    """

    __slots__ = ("_busy_period", "_charges", "_known", "_samples", "_served", "_turn", "_waiting", "_weights", "queues")

    def __init__(self) -> None:
        self._known: dict[str, Account] = {}
        self._charges: Recall[_Charge] = Recall(CHARGES_KEEP)
        self.queues: list[TenantQueues] = []
        self._turn = 0
        self._busy_period = 0
        self._waiting = 0
        self._weights = 0.0
        self._served = 0.0
        self._samples: deque[tuple[float, float]] = deque(maxlen=int(CREDIT_S / _SAMPLE_S) + 1)

    def of(self, name: str) -> Account:
        """The account of a tenant."""
        account = self._known.get(name)
        if account is None:
            if len(self._known) >= TENANTS_KEPT:
                idle = next((one.name for one in self._known.values() if not one.waiting), None)
                if idle is not None:
                    del self._known[idle]
            account = self._known[name] = Account(name)
        return account

    def comes(self, account: Account, entry: QueueEntry, now_s: float) -> None:
        """Places a tenant among the others if this request is the only one of its that waits, before it is counted."""
        weight = max(LEAST_WEIGHT, entry.weight)
        if account.waiting:
            self._weights += weight - account.weight
            account.weight = weight
            return
        account.weight = weight
        if not self._waiting:
            self._busy_period += 1
            self._served = self._weights = 0.0
            self._samples.clear()
        if account.busy_period != self._busy_period:
            account.busy_period, account.tag = self._busy_period, 0.0
        since = next((served for at_s, served in self._samples if at_s >= now_s - CREDIT_S), self._served)
        credit = (self._served - since) / (self._weights + account.weight)
        account.tag = max(account.tag, self._lowest(account.tag) - credit)

    def count(self, account: Account, more: int) -> None:
        """Counts requests that begin to wait, or with a negative number no longer wait."""
        before = account.waiting
        account.waiting += more
        self._waiting += more
        if not before and account.waiting:
            self._weights += account.weight
        elif before and not account.waiting:
            self._weights -= account.weight

    def again(self, account: Account) -> None:
        """Places a tenant that was held at its limit: at the lowest tag of the others, without credit."""
        account.tag = max(account.tag, self._lowest(account.tag))

    def charge(self, account: Account, entry: QueueEntry, now_s: float) -> None:
        """Charges a request that is taken out to be served. With one tenant there is nothing to share."""
        turn_before, self._turn = account.turn, self._turn + 1
        account.turn = self._turn
        if len(self._known) < 2:
            return
        weight = max(LEAST_WEIGHT, entry.weight)
        cost = service_of(entry.request.prompt_tokens, entry.estimates.output_tokens)
        self._charges.note(entry.request.id, _Charge(account, cost / weight, weight, account.busy_period, turn_before))
        if not self._samples or now_s - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now_s, self._served))
        self._served += cost
        account.tag += cost / weight

    def take_back(self, request_id: str) -> None:
        """Takes back the charge of a request that was not served."""
        charge = self._charges.take(request_id)
        if charge is not None:
            self._correct(charge, -charge.amount)
            charge.account.turn = charge.turn_before

    def finished(self, entry: QueueEntry, output_tokens: int) -> None:
        """Replaces the prediction in a charge by the true length."""
        charge = self._charges.take(entry.request.id)
        if charge is not None:
            self._correct(charge, service_of(entry.request.prompt_tokens, output_tokens) / charge.weight - charge.amount)

    def _lowest(self, otherwise: float) -> float:
        """The lowest tag of the tenants that wait for a turn."""
        lowest = min((queue.lowest_tag() for queue in self.queues), default=math.inf)
        return lowest if lowest < math.inf else otherwise

    def _correct(self, charge: _Charge, more: float) -> None:
        """Corrects an account, unless all tenants have started level again since."""
        if charge.busy_period == charge.account.busy_period:
            charge.account.tag += more
            if charge.busy_period == self._busy_period:
                self._served = max(0.0, self._served + more * charge.weight)
