"""The accounts of tenants that share service by weight: which of them floods, what each was served, and which goes next."""

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
FLOOD = 5.0
"""A tenant floods if it asks for more than this many times its share, or for more than engines serve in all; and until it asks for less
than its share. With a lower factor ordinary bursts count, and holding those to a share costs more requests their targets than it saves."""
MEMORY_S = 3.0
"""Time constant in seconds over which is counted what tenants ask for and what engines serve."""
CAPACITY_MEMORY_S = 60.0
"""The same for the most that engines have served: after a pause the first burst shows little of what they can do."""
KNOWN_S = 1.0
"""How long engines have to be seen at work before what they serve is known."""
CREDIT_S = 5.0
"""A tenant that comes back may catch up on what it left of its share in these last seconds: requests come in bursts."""
OUTPUT_WEIGHT = 2.0
"""The service of an output token in prompt tokens, as under `vtc` and `robust-edf`."""
COMMON = ""
"""The account of all tenants that have none of their own."""
_SAMPLE_S = 0.25
_LOOK_S = 0.1


def service_of(prompt_tokens: int, output_tokens: float) -> float:
    """What a request takes from the engines, in prompt tokens."""
    return max(1.0, prompt_tokens + OUTPUT_WEIGHT * output_tokens)


class _Fading:
    """A sum over the last seconds, in which older amounts count exponentially less."""

    __slots__ = ("_at_s", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at_s = -math.inf

    def add(self, amount: float, now_s: float) -> None:
        self._sum = self.value(now_s) + amount
        self._at_s = now_s

    def value(self, now_s: float) -> float:
        return self._sum * math.exp(min(0.0, self._at_s - now_s) / MEMORY_S) if self._sum else 0.0


class _Demand:
    """What a tenant asks for, and its weight as of its newest request."""

    __slots__ = ("asked", "weight")

    def __init__(self) -> None:
        self.asked = _Fading()
        self.weight = 1.0


class Account:
    """The account of a tenant of its own, or of all others together.

    Attributes:
        tag: Service per weight that it got since no request waited (see `service_of`); the lowest goes next.
        busy_period: The time since no request waited, by number, that the tag belongs to.
        weight: Its weight.
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
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996), as under `wfq`, among the tenants that flood and all others together.

    As long as no tenant floods and all weights are equal, there is one account, `COMMON`, and the policy orders the requests of all
    tenants. A tenant that floods gets an account, and so a queue, of its own. Where weights differ every tenant has one.

    The account with the lowest tag goes next, and its tag grows by the service of its request over its weight: at its predicted length
    first, at its true length once it has ended. The weight of `COMMON` is that of its tenants that asked for service lately. An account
    that comes back starts at the lowest tag of those that wait, less what its weight would have given it in the last `CREDIT_S` seconds,
    but never below its own tag. So over any time in which it has requests waiting, an account is served at least its share, less one
    request and the credit of others. Once no request waits, all start level again.

    One object serves the requests in time and the overdue ones of a queue. O(1) a call, O(log t) with t tenants for one that comes back,
    O(t) ten times a second.

    Attributes:
        queues: The queues that use these accounts.
        own: Tenants that have an account of their own.
        flooding: Those of them that flood.
        known: Accounts by name, those that had requests lately.
        demands: What each tenant asked for lately.
        strict: Whether every tenant has, because their weights differ.
    """

    __slots__ = (
        "_busy_period",
        "_charges",
        "_first_s",
        "_looked_s",
        "_most",
        "_samples",
        "_served",
        "_served_lately",
        "_turn",
        "_waiting",
        "_weights",
        "demands",
        "flooding",
        "known",
        "own",
        "queues",
        "strict",
    )

    def __init__(self) -> None:
        self.queues: list[TenantQueues] = []
        self.own: set[str] = set()
        self.flooding: set[str] = set()
        self.known: dict[str, Account] = {COMMON: Account(COMMON)}
        self.demands: dict[str, _Demand] = {}
        self._charges: Recall[_Charge] = Recall(CHARGES_KEEP)
        self._turn = 0
        self._busy_period = 0
        self._waiting = 0
        self._weights = 0.0
        self._served = 0.0
        self._samples: deque[tuple[float, float]] = deque(maxlen=int(CREDIT_S / _SAMPLE_S) + 1)
        self._served_lately = _Fading()
        self._looked_s = -math.inf
        self.strict = False
        self._most = 0.0
        self._first_s = math.inf

    # -- who has an account of its own ----------------------------------------------------------------------------------------

    def asks(self, entry: QueueEntry, now_s: float) -> None:
        """Records a request that comes."""
        name = entry.request.tenant
        demand = self.demands.get(name)
        if demand is None:
            self._forget(now_s)
            demand = self.demands[name] = _Demand()
        demand.weight = max(LEAST_WEIGHT, entry.weight)
        demand.asked.add(service_of(entry.request.prompt_tokens, entry.estimates.output_tokens), now_s)

    def separate(self, name: str, now_s: float) -> None:
        """Gives a tenant an account of its own, with its requests that wait."""
        if name not in self.own:
            self.own.add(name)
            # It was served with the others until now, so on equal tags they go first.
            self._turn += 1
            self.of(name).turn = self._turn
            for queue in self.queues:
                queue.separate(name, now_s)

    def look(self, now_s: float) -> None:
        """Decides by what tenants ask for which of them have accounts of their own. O(tenants), at most ten times a second."""
        if len(self.demands) < 2 or now_s - self._looked_s < _LOOK_S:
            return
        self._most *= math.exp(min(0.0, self._looked_s - now_s) / CAPACITY_MEMORY_S)
        self._looked_s = now_s
        served = self._most = max(self._most, self._served_lately.value(now_s))
        knows = now_s - self._first_s >= KNOWN_S
        asking = {name: one.asked.value(now_s) for name, one in self.demands.items()}
        active = [name for name, asked in asking.items() if asked > 0.01 * served or name in self.own]
        weights = sum(self.demands[name].weight for name in active)
        self.strict = len({self.demands[name].weight for name in active}) > 1
        for name in active:
            share = self.demands[name].weight / weights * served
            floods = asking[name] > min(FLOOD * share, served) and len(active) > 1 and self._waiting and knows
            if floods:
                self.flooding.add(name)
            elif asking[name] < share:
                self.flooding.discard(name)
            if self.strict or floods:
                self.separate(name, now_s)
            elif name in self.own and asking[name] < share and not any(queue.holds(name) for queue in self.queues):
                self.own.discard(name)
        others = sum(self.demands[name].weight for name in active if name not in self.own)
        self._weigh(self.known[COMMON], others or 1.0)

    def _forget(self, now_s: float) -> None:
        """Makes room for one more tenant: forgets the one without a waiting request of its own that asked for the least. O(tenants)."""
        if len(self.demands) >= TENANTS_KEPT:
            idle = [name for name in self.demands if not any(queue.holds(name) for queue in self.queues)]
            if idle:
                least = min(idle, key=lambda name: self.demands[name].asked.value(now_s))
                del self.demands[least]
                self.own.discard(least)
                self.flooding.discard(least)

    # -- the turns ------------------------------------------------------------------------------------------------------------

    def of(self, name: str) -> Account:
        """The account that requests of a tenant go to."""
        name = name if name in self.own else COMMON
        account = self.known.get(name)
        if account is None:
            if len(self.known) > TENANTS_KEPT:
                idle = next((one.name for one in self.known.values() if not one.waiting and one.name != COMMON), None)
                if idle is not None:
                    del self.known[idle]
            account = self.known[name] = Account(name)
        return account

    def comes(self, account: Account, entry: QueueEntry, now_s: float) -> None:
        """Places an account among the others if this request is the only one of its that waits, before it is counted."""
        if account.name != COMMON:
            self._weigh(account, max(LEAST_WEIGHT, entry.weight))
        if account.waiting:
            return
        if not self._waiting:
            self._busy_period += 1
            self._served = self._weights = 0.0
            self._samples.clear()
            account.busy_period, account.tag = self._busy_period, 0.0
            return
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
        """Places an account that was held at its limit: at the lowest tag of the others, without credit."""
        account.tag = max(account.tag, self._lowest(account.tag))

    def charge(self, account: Account, entry: QueueEntry, now_s: float) -> None:
        """Charges a request that is taken out to be served."""
        cost = service_of(entry.request.prompt_tokens, entry.estimates.output_tokens)
        weight = account.weight if account.name == COMMON else max(LEAST_WEIGHT, entry.weight)
        turn_before, self._turn = account.turn, self._turn + 1
        account.turn = self._turn
        self._served_lately.add(cost, now_s)
        self._first_s = min(self._first_s, now_s)
        if len(self.demands) < 2:
            return
        self._charges.note(entry.request.id, _Charge(account, cost / weight, weight, account.busy_period, turn_before))
        if not self._samples or now_s - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now_s, self._served))
        self._served += cost
        account.tag += cost / weight

    def take_back(self, request_id: str, now_s: float) -> None:
        """Takes back the charge of a request that was not served."""
        charge = self._charges.take(request_id)
        if charge is not None:
            self._correct(charge, -charge.amount, now_s)
            charge.account.turn = charge.turn_before

    def finished(self, entry: QueueEntry, output_tokens: int, now_s: float) -> None:
        """Replaces the prediction in a charge by the true length."""
        charge = self._charges.take(entry.request.id)
        if charge is not None:
            cost = service_of(entry.request.prompt_tokens, output_tokens)
            self._correct(charge, cost / charge.weight - charge.amount, now_s)

    def _weigh(self, account: Account, weight: float) -> None:
        if account.waiting:
            self._weights += weight - account.weight
        account.weight = weight

    def _lowest(self, otherwise: float) -> float:
        """The lowest tag of the accounts that wait for a turn."""
        lowest = min((queue.lowest_tag() for queue in self.queues), default=math.inf)
        return lowest if lowest < math.inf else otherwise

    def _correct(self, charge: _Charge, more: float, now_s: float) -> None:
        """Corrects an account, unless all have started level again since."""
        self._served_lately.add(more * charge.weight, now_s)
        if charge.busy_period == charge.account.busy_period:
            charge.account.tag += more
            if charge.busy_period == self._busy_period:
                self._served = max(0.0, self._served + more * charge.weight)
