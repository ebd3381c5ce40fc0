"""The accounts of tenants that share service by weight: what each was served, and which goes next."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from hmas.controller.scheduling.policy_base.flow import LEAST_WEIGHT
from hmas.controller.scheduling.policy_base.flow_policy import CHARGES_KEEP
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.policy_base.recall import Recall
from hmas.controller.scheduling.queue.flood_watch import TENANTS_KEPT, FloodWatch, service_of

if TYPE_CHECKING:
    from hmas.controller.scheduling.queue.tenant_queues import TenantQueues

CREDIT_S = 5.0
"""A tenant that comes back may catch up on what it left of its share in these last seconds: requests come in bursts."""
COMMON = ""
"""The account of all tenants that have none of their own."""
_SAMPLE_S = 0.25


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
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996), as under `wfq`, among the tenants that ask for too much (`FLOOD`) and
    all others together.

    As long as no tenant does and all weights are equal, there is one account, `COMMON`, and the policy orders the requests of all
    tenants. A tenant that does gets an account, and so a queue, of its own. Where weights differ every tenant has one.

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
        watch: Which tenants flood.
        known: Accounts by name, those that had requests lately.
        strict: Whether every tenant has, because their weights differ.
    """

    __slots__ = (
        "_busy_period",
        "_charges",
        "_forget_at",
        "_samples",
        "_served",
        "_turn",
        "_waiting",
        "_waits",
        "_weights",
        "known",
        "own",
        "queues",
        "strict",
        "watch",
    )

    def __init__(self, waits: Container[str] = ()) -> None:
        """Starts empty. `waits`: the tenants that have requests waiting, here or for other instances; it is read as it changes."""
        self._waits = waits
        self._forget_at = TENANTS_KEPT
        self.queues: list[TenantQueues] = []
        self.own: set[str] = set()
        self.watch = FloodWatch()
        self.known: dict[str, Account] = {COMMON: Account(COMMON)}
        self._charges: Recall[_Charge] = Recall(CHARGES_KEEP)
        self._turn = 0
        self._busy_period = 0
        self._waiting = 0
        self._weights = 0.0
        self._served = 0.0
        self._samples: deque[tuple[float, float]] = deque(maxlen=int(CREDIT_S / _SAMPLE_S) + 1)
        self.strict = False

    # -- who has an account of its own ----------------------------------------------------------------------------------------

    def asks(self, entry: QueueEntry, now_s: float) -> None:
        """Records a request that comes."""
        if entry.request.tenant not in self.watch.demands:
            self._forget(now_s)
        self.watch.asks(entry, now_s)

    def separate(self, names: Iterable[str], now_s: float) -> None:
        """Gives tenants accounts of their own, with their requests that wait. O(n) for all of them together."""
        separated = [name for name in names if name not in self.own]
        for name in separated:
            self.own.add(name)
            # It was served with the others until now, so on equal tags they go first.
            self._turn += 1
            self.of(name).turn = self._turn
        if separated:
            for queue in self.queues:
                queue.separate(frozenset(separated), now_s)

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Takes changed weights of tenants. What an account is ahead of the others counts by its new weight. O(weights)."""
        for name, told in weights.items():
            weight, demand, account = max(LEAST_WEIGHT, told), self.watch.demands.get(name), self.known.get(name)
            if demand is not None:
                demand.weight = weight
            if account is None or name == COMMON or account.weight == weight:
                continue
            lowest = self._lowest(account.tag)
            if account.tag > lowest:
                account.tag = lowest + (account.tag - lowest) * account.weight / weight
            self._weigh(account, weight)
            for queue in self.queues:
                queue.moved(name)

    def look(self, waiting: int, now_s: float, produced: Callable[[float], float]) -> None:
        """Decides by what tenants ask for which of them have accounts of their own; the arguments as in `FloodWatch.look`. O(tenants)."""
        if not self.watch.look(waiting, now_s, produced, kept=self.own.__contains__):
            return
        demands, active = self.watch.demands, self.watch.active
        # A tenant that has stopped asking still takes service for what it has waiting.
        served = [name for name in demands if name in active or name in self._waits]
        self.strict = len({demands[name].weight for name in served}) > 1
        self.separate(served if self.strict else [name for name in active if name in self.watch.greedy], now_s)
        if not self.strict:
            for name in active:
                if name in self.own and name not in self.watch.greedy and not any(queue.holds(name) for queue in self.queues):
                    self.own.discard(name)
        others = sum(demands[name].weight for name in active if name not in self.own)
        self._weigh(self.known[COMMON], others or 1.0)

    def _forget(self, now_s: float) -> None:
        """Forgets tenants without a waiting request that asked for the least, if too many are known.

        It looks again only after an eighth more have come. So a tenant that comes costs O(1).
        """
        demands = self.watch.demands
        if len(demands) < self._forget_at:
            return
        idle = [name for name in demands if name not in self._waits and not any(queue.holds(name) for queue in self.queues)]
        excess = len(demands) - TENANTS_KEPT * 7 // 8
        for name in heapq.nsmallest(excess, idle, key=lambda name: demands[name].asked_per_s(now_s)):
            self.watch.forget(name)
            self.own.discard(name)
        self._forget_at = max(TENANTS_KEPT, len(demands) * 9 // 8)

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
        if len(self.watch.demands) < 2:
            return
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
            cost = service_of(entry.request.prompt_tokens, output_tokens)
            self._correct(charge, cost / charge.weight - charge.amount)

    def _weigh(self, account: Account, weight: float) -> None:
        if account.waiting:
            self._weights += weight - account.weight
        account.weight = weight

    def _lowest(self, otherwise: float) -> float:
        """The lowest tag of the accounts that wait for a turn."""
        lowest = min((queue.lowest_tag() for queue in self.queues), default=math.inf)
        return lowest if lowest < math.inf else otherwise

    def _correct(self, charge: _Charge, more: float) -> None:
        """Corrects an account, unless all have started level again since."""
        if charge.busy_period == charge.account.busy_period:
            charge.account.tag += more
            if charge.busy_period == self._busy_period:
                self._served = max(0.0, self._served + more * charge.weight)
