"""The digital twin: the traffic of late through the very scheduler and the engine's model in virtual time, once under each candidate. Pure.

What is compared is what would have been good: requests that meet both targets (H-MAS Eq. 1), weighted by their tenants, by the slot of
time in which they came. Every candidate meets the same arrivals with the same beliefs, so differences are the candidates' own; how far they
can be trusted is told by how they scatter over the slots.
"""

from collections.abc import Mapping, Sequence
from math import sqrt

import msgspec

from agents.meta.traffic import Asked
from controller.core.objectives import percentile
from controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from controller.routing import make_router
from controller.scheduling.outcomes import InstanceSpec, SchedulerSettings
from controller.scheduling.scheduler import Scheduler
from controller.simulation import Arrival, RequestRecord, simulate
from engines.sim.model import EngineModel
from engines.sim.profile import Profile

SLOTS = 12
"""Parts of the window whose differences are compared."""
GRACE_S = 120.0
"""Virtual time after the last arrival at which a replay ends: what has not come to its end by then counts as missed."""
UNTOLD = Estimates(slo=Slo(ttft_ms=1.0, tpot_ms=1.0))
"""Costs of a request of which nobody has told any."""
LATE_TTFT_MS = 3_600_000.0
"""Stands for the time to first token of a request that got none."""


class Plant(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as the twin runs it.

    Attributes:
        profile: How long its steps take.
        n_run, token_budget: Controls in force; None leaves the profile's own budget.
        models: Models that it serves, None for any.
    """

    name: str
    profile: Profile
    n_run: int
    token_budget: int | None = None
    models: frozenset[str] | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An order of the queue to try; hints that are not named are the policy's own."""

    policy: str
    hints: dict[str, float] = {}

    @property
    def label(self) -> str:
        """Name with hints, such as `two-lane(threshold_ms=4000)`."""
        told = ", ".join(f"{name}={value:g}" for name, value in sorted(self.hints.items()))
        return f"{self.policy}({told})" if told else self.policy


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate would have come to.

    Attributes:
        requests: Scored ones, those after the lead-in.
        good: Weighted share of them that met both targets, 0 to 1. `slots`: weighted good ones by slot of time; `asked`: weights by slot.
        ttft_ms_p99: Over scored requests, those without a first token counted as endless.
    """

    candidate: Candidate
    requests: int
    good: float
    slots: tuple[float, ...]
    asked: tuple[float, ...]
    ttft_ms_p99: float


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """One outlook against another.

    Attributes:
        share: Difference of weighted good requests over those asked, -1 to 1.
        error: Its standard error, from how the difference scatters over the slots.
    """

    share: float
    error: float


def replay(
    asked: Sequence[Asked],
    plants: Sequence[Plant],
    candidate: Candidate,
    *,
    settings: SchedulerSettings,
    lead_s: float = 0.0,
    routing: str = "least-loaded",
    weights: Mapping[str, float] | None = None,
) -> Outlook:
    """Runs a window of the past under a candidate, from an empty queue on.

    Args:
        asked: Requests by rising arrival; at least one.
        plants: The fleet; at least one instance.
        candidate: What orders the queue.
        settings: The gateway's own admission settings.
        lead_s: What came in the first so many seconds fills the queue and is not scored.
        routing: The gateway's router.
        weights: Of tenants, 1 where none is told.

    Raises:
        PolicyError: There is no such policy, or it does not take a hint.
    """
    scheduler = Scheduler(
        settings=settings,
        instances=[
            InstanceSpec(
                name=plant.name,
                capacity_n_run=plant.n_run,
                kv_capacity_tokens=plant.profile.kv_capacity_tokens,
                kv_bytes_per_token=plant.profile.kv_bytes_per_token,
                models=plant.models,
            )
            for plant in plants
        ],
        router=make_router(routing),
        policy=candidate.policy,
        hints=candidate.hints,
    )
    engines = {plant.name: EngineModel(plant.profile, n_run=plant.n_run, token_budget=plant.token_budget) for plant in plants}
    for plant in plants:
        scheduler.set_controls(plant.name, Controls(n_run=plant.n_run))
    of = dict(weights or {})
    result = simulate([_arrival(one, of.get(one.tenant, 1.0)) for one in asked], engines, scheduler, until_s=asked[-1].arrival_s + GRACE_S)
    return _outlook(candidate, result.records, of, start_s=asked[0].arrival_s + lead_s, end_s=asked[-1].arrival_s)


def gain(one: Outlook, other: Outlook) -> Gain:
    """How much more is good under one than under the other; both are of the same window."""
    total = sum(one.asked)
    if total <= 0.0:
        return Gain(share=0.0, error=0.0)
    differences = [mine - theirs for mine, theirs in zip(one.slots, other.slots, strict=True)]
    mean = sum(differences) / len(differences)
    variance = sum((difference - mean) ** 2 for difference in differences) / (len(differences) - 1)
    return Gain(share=sum(differences) / total, error=sqrt(variance * len(differences)) / total)


def _arrival(one: Asked, weight: float) -> Arrival:
    def estimate(_request: Request, _now_s: float) -> Estimates:
        return one.estimates(UNTOLD)

    return Arrival(request=one.request(), estimate=estimate, output_tokens=one.output_tokens, weight=weight)


def _outlook(
    candidate: Candidate, records: Sequence[RequestRecord], weights: Mapping[str, float], *, start_s: float, end_s: float
) -> Outlook:
    width_s = max(1e-9, end_s - start_s) / SLOTS
    good, asked = [0.0] * SLOTS, [0.0] * SLOTS
    ttfts = []
    for record in records:
        if record.arrival_s < start_s:
            continue
        slot = min(SLOTS - 1, int((record.arrival_s - start_s) / width_s))
        weight = weights.get(record.tenant, 1.0)
        asked[slot] += weight
        good[slot] += weight * (record.outcome is OutcomeKind.COMPLETED and record.slo_met)
        ttfts.append(record.ttft_ms if record.ttft_ms >= 0.0 else LATE_TTFT_MS)
    total = sum(asked)
    return Outlook(
        candidate=candidate,
        requests=len(ttfts),
        good=sum(good) / total if total > 0.0 else 0.0,
        slots=tuple(good),
        asked=tuple(asked),
        ttft_ms_p99=percentile(sorted(ttfts), 99) if ttfts else 0.0,
    )
