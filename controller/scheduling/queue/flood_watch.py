"""Which tenants flood, by what they ask for and what the engines serve, and what is to be left free for the others meanwhile."""

import math
from collections import deque
from collections.abc import Callable

import msgspec

from hmas.controller.core.statistics.rate import KNOWN_S, Rate, left_of
from hmas.controller.scheduling.policy_base.flow import LEAST_WEIGHT
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry

TENANTS_KEPT = 1024
"""Number of tenants above which some that have no request waiting are forgotten when another comes."""
FLOOD = 5.0
"""A tenant asks for too much if it asks for more than this many times its share, or for more than engines serve in all; and until it asks
for less than its share. With a lower factor ordinary bursts count, and holding those to a share costs more requests their targets than it
saves."""
STILL = 0.5
"""A tenant that asks for too much floods if it asks for more than its weight's part of all that is asked for, and until it asks for less
than this times that part. Otherwise others flood, and what engines serve is too little for it as well."""
MEMORY_S = 3.0
"""Time constant in seconds over which is counted what tenants ask for, and what is sent to engines."""
SERVED_MEMORY_S = 8.0
"""The same for what engines serve. `MEMORY_S` after its beginning it replaces what was sent, which says too much: an empty engine takes at
once what it then serves for minutes."""
ENDS_MEMORY_S = 15.0
"""The same for how many requests end."""
LATELY_S = 60.0
"""The same for what a tenant is kept room for, and for the most that engines have served: after a pause the first burst shows little."""
COUNTED_LEAST = 8
"""Requests over which is counted what a tenant asks for, where so many take longer than `MEMORY_S`: of a few a minute, two at once are no
flood."""
BEHIND_S = 0.5
"""Requests of this many seconds, at the rate at which requests end, have to wait before a tenant can ask for too much: engines that keep up
show what is asked for and not what they could serve, and ordinary bursts lie above that."""
OUTPUT_WEIGHT = 2.0
"""The service of an output token in prompt tokens, as under `vtc` and `robust-edf`."""
KEPT_OVER_ASKED = 1.25
"""What a flood leaves to a tenant over what that has asked for in the last minute, at most its share. With 1, a tenant within its share
keeps a point less of what it has alone in simulated floods of mixed sizes; with 1.5, a third of what the flood gets in time is lost."""
_LOOK_S = 0.1 - 1e-3
"""How often it is decided which tenants flood, at most: a tick that comes early by a rounding error is not passed over."""
_LEAST_SHARE = 0.01
"""What a tenant that asks for less of what is served counts as: nothing."""
_TARGET_STEP = 0.05
"""The strictest target of a tenant's requests is forgotten by this much with each looser one."""
_SOON = 0.1
"""Nothing is kept free where requests end so fast that the time between two is below this share of the others' strictest TTFT target:
there the turns of the tenants suffice, and what is kept free is lost."""


def service_of(prompt_tokens: int, output_tokens: float) -> float:
    """What a request takes from the engines, in prompt tokens."""
    return max(1.0, prompt_tokens + OUTPUT_WEIGHT * output_tokens)


class Demand:
    """What a tenant asks for: now, in the last minute, its weight as of its newest request, and about its strictest targets in ms."""

    __slots__ = ("_asked", "_newest", "lately", "tpot_ms", "ttft_ms", "weight")

    def __init__(self) -> None:
        self._asked = Rate(MEMORY_S)
        self._newest: deque[tuple[float, float]] = deque(maxlen=COUNTED_LEAST)
        self.lately = Rate(LATELY_S, since_first=True)
        self.weight = 1.0
        self.ttft_ms = self.tpot_ms = math.inf

    def add(self, entry: QueueEntry, now_s: float) -> None:
        """Adds a request."""
        self.weight = max(LEAST_WEIGHT, entry.weight)
        service = service_of(entry.request.prompt_tokens, entry.estimates.output_tokens)
        self._asked.add(service, now_s)
        self._newest.append((now_s, service))
        self.lately.add(service, now_s)
        slo = entry.estimates.slo
        self.ttft_ms, self.tpot_ms = _strictest(self.ttft_ms, slo.ttft_ms), _strictest(self.tpot_ms, slo.tpot_ms)

    def asked_per_s(self, now_s: float) -> float:
        """The service that it asks for per second now: over `MEMORY_S`, or over its last `COUNTED_LEAST` requests if those took longer."""
        newest = self._newest
        over_s = now_s - newest[0][0] if newest else 0.0
        if len(newest) == COUNTED_LEAST and over_s <= MEMORY_S:
            return self._asked.per_s(now_s)
        return sum(service for _, service in newest) / max(MEMORY_S, over_s)


def _strictest(before_ms: float, ms: float) -> float:
    return ms if before_ms == math.inf else min(ms, before_ms + _TARGET_STEP * (ms - before_ms))


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """What requests of a flood leave to those of other tenants: a share of each instance, and a pace.

    Attributes:
        share: The share, 0 for none.
        tpot_ms: The strictest TPOT target of the others, which the pace has to suit; infinite where none asks for service.
    """

    share: float = 0.0
    tpot_ms: float = math.inf


NOTHING_KEPT = Reserve()


class FloodWatch:
    """Decides which tenants flood. O(1) a request, O(tenants) ten times a second.

    Attributes:
        demands: What each tenant asked for lately.
        greedy: The tenants that ask for too much.
        flooding: Those of them that flood.
        reserve: What these leave to the others.
        served_per_s: The most service per second that engines gave lately.
        active: The tenants that ask for service, as of the last look.
    """

    __slots__ = (
        "_ends",
        "_looked_s",
        "_produced",
        "_sent",
        "_sent_most",
        "_served",
        "_served_most",
        "active",
        "demands",
        "flooding",
        "greedy",
        "reserve",
        "served_per_s",
    )

    def __init__(self) -> None:
        self.demands: dict[str, Demand] = {}
        self.flooding: set[str] = set()
        self.greedy: set[str] = set()
        self.reserve = NOTHING_KEPT
        self.served_per_s = 0.0
        self.active: dict[str, float] = {}
        self._sent = Rate(MEMORY_S)
        self._sent_most = 0.0
        self._served = Rate(SERVED_MEMORY_S, since_first=True)
        self._served_most = 0.0
        self._produced = 0.0
        self._ends = Rate(ENDS_MEMORY_S, since_first=True)
        self._looked_s = -math.inf

    def asks(self, entry: QueueEntry, now_s: float) -> None:
        """Records a request that comes."""
        demand = self.demands.get(entry.request.tenant)
        if demand is None:
            demand = self.demands[entry.request.tenant] = Demand()
        demand.add(entry, now_s)

    def sent(self, entry: QueueEntry, now_s: float) -> None:
        """Records a request that goes to an engine."""
        self._sent.add(service_of(entry.request.prompt_tokens, entry.estimates.output_tokens), now_s)

    def ended(self, now_s: float) -> None:
        """Records a request that engines have served."""
        self._ends.add(1.0, now_s)

    def look(self, waiting: int, now_s: float, produced: Callable[[float], float], *, kept: Callable[[str], bool]) -> bool:
        """Decides which tenants flood, at most ten times a second; whether it did.

        Args:
            waiting: How many requests wait.
            now_s: The time.
            produced: The service that engines have given as of a time; it only grows.
            kept: Whether a tenant counts as one that asks for service whatever it asks for.
        """
        if len(self.demands) < 2 or now_s - self._looked_s < _LOOK_S:
            return False
        fades = left_of(self._looked_s, now_s, LATELY_S)
        before, self._produced = self._produced, produced(now_s)
        if self._produced > before and now_s - self._looked_s <= MEMORY_S:
            # What was produced in a longer time did not come just now.
            self._served.add(self._produced - before, now_s)
        self._looked_s = now_s
        self._sent_most = max(fades * self._sent_most, self._sent.per_s(now_s))
        self._served_most *= fades
        if known := self._served.age_s(now_s) >= MEMORY_S:
            self._served_most = max(self._served_most, self._served.per_s(now_s))
        served = self.served_per_s = self._served_most if known else self._sent_most
        knows = served > 0.0 and self._sent.age_s(now_s) >= KNOWN_S
        if not knows:
            # After hours without a request nothing is left of what was known.
            self.flooding.clear()
            self.greedy.clear()
        asking = {name: one.asked_per_s(now_s) for name, one in self.demands.items()}
        self.active = {name: asked for name, asked in asking.items() if asked > _LEAST_SHARE * served or kept(name)}
        behind = waiting > BEHIND_S * self._ends.per_s(now_s)
        weights = sum(self.demands[name].weight for name in self.active)
        asked_in_all = sum(self.active.values())
        for name, asked in self.active.items():
            part = self.demands[name].weight / weights
            share, of_all = part * served, part * asked_in_all
            others = asked_in_all - asked
            if asked > min(FLOOD * share, served) and others > _LEAST_SHARE * served and behind and knows:
                self.greedy.add(name)
            elif asked < share:
                self.greedy.discard(name)
            if name not in self.greedy or asked < STILL * of_all:
                self.flooding.discard(name)
            elif asked > of_all:
                self.flooding.add(name)
        self.reserve = self._reserve(now_s) if self.flooding else NOTHING_KEPT
        return True

    def _reserve(self, now_s: float) -> Reserve:
        others = {name: one for name, one in self.demands.items() if name not in self.flooding}
        rates = {name: one.lately.per_s(now_s) / self.served_per_s for name, one in others.items()}
        rates = {name: rate for name, rate in rates.items() if rate > _LEAST_SHARE}
        weights = sum(one.weight for name, one in self.demands.items() if name in rates or name in self.flooding)
        asking = [others[name] for name in rates]
        ttft_ms = min((one.ttft_ms for one in asking), default=math.inf)
        tpot_ms = min((one.tpot_ms for one in asking), default=math.inf)
        if self._ends.per_s(now_s) * _SOON * ttft_ms / 1000.0 > 1.0:
            return Reserve(0.0, tpot_ms)
        share = sum(min(KEPT_OVER_ASKED * rate, others[name].weight / weights) for name, rate in rates.items())
        return Reserve(share, tpot_ms)

    def forget(self, name: str) -> None:
        """Forgets a tenant."""
        del self.demands[name]
        self.flooding.discard(name)
        self.greedy.discard(name)
        self.active.pop(name, None)
