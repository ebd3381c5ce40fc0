"""How evenly tenants are served while they compete: Jain's index and max-min over their normalised service."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from hmas.controller.core.objectives import jain

LEAST_SHARE = 0.1
"""Tenants that waited for less than this share of the contended time are left out: a single wait would decide their rate."""


class Service(NamedTuple):
    """One request: it waits from arrival to start and is served from start to end. `start_s` = `end_s` if it was never served."""

    tenant: str
    arrival_s: float
    start_s: float
    end_s: float
    tokens: float


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly the competing tenants were served.

    Attributes:
        jain: Jain's index over `rates` (Jain, Chiu and Hawe, 1984), 1 if all are equal or fewer than two competed.
        max_min: The worst rate over the best, 0 to 1; 1 if fewer than two competed.
        contended_s: Time in which two or more tenants had requests waiting.
        rates: Tokens per second and unit of weight that each tenant was served in the part of that time in which its own requests waited.
    """

    jain: float = 1.0
    max_min: float = 1.0
    contended_s: float = 0.0
    rates: dict[str, float] = {}


class _Tenant:
    """The account of one tenant during the pass over time."""

    def __init__(self) -> None:
        self.waiting = 0
        self.rate = 0.0
        self.since_s = 0.0
        self.tokens = 0.0
        self.backlogged_s = 0.0
        self.began_s = 0.0
        self.waits = 0

    def settle(self, now_s: float, *, contended: bool) -> None:
        """Counts the time since the last change, if the tenant waited while others did, too."""
        if contended and self.waiting:
            self.tokens += max(0.0, self.rate) * (now_s - self.since_s)
            self.backlogged_s += now_s - self.since_s
        self.since_s = now_s


def fairness(services: Iterable[Service], weights: Mapping[str, float] | None = None) -> Fairness:
    """Passes over time and counts what each tenant was served while it and at least one other had requests waiting.

    Only such times show fairness: a tenant that asks for little is served little without unfairness. For the same reason a tenant is left
    out whose queue empties sooner, in the mean, than a request takes: it gets what it asks for. The tokens of a request count as served
    evenly between its start and its end. O(n log n) in the requests, which may be in any order, for any number of tenants.
    The weight of a tenant that is not named is 1.
    """
    weights = weights or {}
    events: list[tuple[float, int, str, int, float]] = []
    served, served_s = 0, 0.0
    for number, one in enumerate(services):
        events.append((one.arrival_s, number, one.tenant, 1, 0.0))
        took_s = one.end_s - one.start_s
        rate = one.tokens / took_s if took_s > 0.0 else 0.0
        served, served_s = served + (took_s > 0.0), served_s + max(0.0, took_s)
        events.append((max(one.start_s, one.arrival_s), number, one.tenant, -1, rate))
        if rate:
            events.append((one.end_s, number, one.tenant, 0, -rate))
    tenants = {name: _Tenant() for name in sorted({event[2] for event in events})}
    # Only tenants that wait while another does are counted, and a change between one and two waiting tenants touches only those two.
    waiting: dict[str, None] = {}
    contended_s, since_s = 0.0, 0.0
    for at_s, _, name, change, rate in sorted(events, key=lambda event: event[:2]):
        tenant, contended = tenants[name], len(waiting) >= 2
        tenant.settle(at_s, contended=contended)
        if change > 0 and not tenant.waiting:
            tenant.began_s = at_s
        tenant.waiting += change
        if change < 0 and not tenant.waiting and at_s > tenant.began_s:
            tenant.waits += 1
        tenant.rate += rate
        if tenant.waiting:
            waiting[name] = None
        else:
            waiting.pop(name, None)
        if contended != (len(waiting) >= 2):
            contended_s += at_s - since_s if contended else 0.0
            since_s = at_s
            for other in waiting:
                tenants[other].settle(at_s, contended=contended)
    mean_s = served_s / max(1, served)
    rates = {
        name: tenant.tokens / tenant.backlogged_s / weights.get(name, 1.0)
        for name, tenant in tenants.items()
        if tenant.backlogged_s > LEAST_SHARE * contended_s and tenant.backlogged_s >= mean_s * tenant.waits
    }
    best = max(rates.values(), default=0.0)
    if len(rates) < 2 or best <= 0.0:
        return Fairness(contended_s=contended_s, rates=rates)
    return Fairness(jain=jain(rates.values()), max_min=min(rates.values()) / best, contended_s=contended_s, rates=rates)
