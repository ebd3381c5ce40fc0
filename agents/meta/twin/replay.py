"""One replay: the traffic of late through the very scheduler and the engine's model in virtual time, under one candidate. Pure.

What is compared is what would have been good: requests that meet both targets (H-MAS Eq. 1), weighted by their tenants, by the slot of
time in which they came. Every candidate meets the same arrivals with the same beliefs, so differences are the candidates' own.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing import make_router
from hmas.controller.scheduling.policies.robust_edf import RobustEdf
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, Periodic, RequestRecord, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile

SLOT_S = 5.0
"""Requests are added up by slots of absolute time, so that replays of overlapping windows speak of the same ones."""
GRACE_S = 120.0
"""Virtual time after the last arrival at which a replay ends: what has not come to its end by then counts as missed."""
REGULATED_S = 0.5
"""How often statera's controls are taken up in a replay."""
UNTOLD = Estimates(slo=Slo(ttft_ms=1.0, tpot_ms=1.0))
"""Costs of a request of which nobody has told any."""


class ReplayInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as the twin runs it.

    Attributes:
        profile: How long its steps take.
        regulated: What statera gave it: since when, and the controls; at least once. `ceiling`: the largest window that it can have.
        token_budget: In force; None leaves the profile's own.
        models: Models that it serves, None for any.
        first_token_overhead_ms: Within what time a first token has mostly come beyond its prompt's own prefill, 0 where that is not known.
    """

    name: str
    profile: Profile
    regulated: tuple[tuple[float, Controls], ...]
    ceiling: int
    token_budget: int | None = None
    models: frozenset[str] | None = None
    first_token_overhead_ms: float = 0.0

    def controls(self, candidate: Candidate, at_s: float) -> Controls:
        """Its controls under a candidate at a moment: statera's of that moment, but for a window that the candidate names."""
        place = bisect_right(self.regulated, at_s, key=itemgetter(0)) - 1
        given = self.regulated[max(0, place)][1]
        return Controls(n_run=min(candidate.n_run or given.n_run, self.ceiling), guard=given.guard)


class ReplayScenario(msgspec.Struct, frozen=True, kw_only=True):
    """What all candidates meet alike.

    Attributes:
        asked: Requests by rising arrival, at least one.
        plants: The fleet, at least one instance.
        settings, routing, weights: The gateway's own admission settings, router, and tenants' weights (1 where none is told).
        from_s, until_s: What came before fills the queue, and what comes from the moment of asking on keeps up the load; neither is scored.
        overdue: Requests that had missed their first token's time by then and still waited.
        cost_threshold: Cost above which `robust-edf` puts requests behind as a replay begins, tokens; 0 for none.
    """

    asked: tuple[PastRequest, ...]
    plants: tuple[ReplayInstance, ...]
    settings: SchedulerSettings
    from_s: float
    until_s: float
    overdue: float = 0.0
    cost_threshold: float = 0.0
    routing: str = "least-loaded"
    weights: Mapping[str, float] = {}


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate would have come to.

    Attributes:
        requests: Scored ones.
        good: Weighted share of them that met both targets, 0 to 1.
        slots: By number of the slot (arrival over SLOT_S): weight of good ones, and of all.
        cost_thresholds: Once a slot, since when on the clock of the requests' arrivals: the cost above which `robust-edf` put them
            behind, 0 for none.
    """

    candidate: Candidate
    requests: int
    good: float
    slots: dict[int, tuple[float, float]]
    cost_thresholds: tuple[tuple[float, float], ...] = ()


def replay(world: ReplayScenario, candidate: Candidate) -> tuple[ReplayResult, list[RequestRecord]]:
    """Runs a window of the past under a candidate, from an empty queue on.

    Returns:
        What it came to, and the records of all its requests.

    Raises:
        PolicyError: There is no such policy, or it does not take a parameter.
    """
    by_cost = candidate.policy == RobustEdf.name
    scheduler = Scheduler(
        settings=world.settings,
        instances=[
            InstanceSpec(
                name=plant.name,
                capacity_n_run=plant.ceiling,
                kv_capacity_tokens=plant.profile.kv_capacity_tokens,
                kv_bytes_per_token=plant.profile.kv_bytes_per_token,
                models=plant.models,
                first_token_overhead_ms=plant.first_token_overhead_ms,
            )
            for plant in world.plants
        ],
        router=make_router(world.routing),
        policy=candidate.policy,
        parameters={"cost_threshold": world.cost_threshold} | candidate.parameters if by_cost else candidate.parameters,
    )
    engines = {plant.name: EngineModel(plant.profile, n_run=plant.ceiling, token_budget=plant.token_budget) for plant in world.plants}
    in_force: dict[str, Controls] = {}

    def regulate(now_s: float) -> None:
        for plant in world.plants:
            controls = plant.controls(candidate, now_s)
            if in_force.get(plant.name) != controls:
                in_force[plant.name] = controls
                scheduler.set_controls(plant.name, controls)

    regulate(world.asked[0].request.arrival_s)
    moving = any(len(plant.regulated) > 1 for plant in world.plants)
    regulator = [Periodic(every_s=REGULATED_S, run=lambda now_s, _scheduler, _engines: regulate(now_s))] if moving else []
    cost_thresholds: list[tuple[float, float]] = []
    if by_cost:
        regulator.append(
            Periodic(every_s=SLOT_S, run=lambda now_s, at_work, _engines: cost_thresholds.append((now_s, at_work.cost_threshold)))
        )
    result = simulate(_arrivals(world), engines, scheduler, controls=regulator, until_s=world.asked[-1].request.arrival_s + GRACE_S)
    return replace(outlook_of(candidate, result.records, world), cost_thresholds=tuple(cost_thresholds)), result.records


def outlook_of(candidate: Candidate, records: Sequence[RequestRecord], world: ReplayScenario) -> ReplayResult:
    """Adds what is scored of a replay's records up by slots."""
    slots: dict[int, tuple[float, float]] = {}
    requests = 0
    for record in records:
        if not world.from_s <= record.arrival_s < world.until_s:
            continue
        slot, weight = int(record.arrival_s // SLOT_S), world.weights.get(record.tenant, 1.0)
        good, asked = slots.get(slot, (0.0, 0.0))
        slots[slot] = (good + weight * is_good(record), asked + weight)
        requests += 1
    asked_of_all = sum(asked for _, asked in slots.values())
    good_of_all = sum(good for good, _ in slots.values())
    return ReplayResult(candidate=candidate, requests=requests, good=good_of_all / asked_of_all if asked_of_all > 0.0 else 0.0, slots=slots)


def is_good(record: RequestRecord) -> bool:
    """Whether it kept both targets (Eq. 1)."""
    return record.outcome is OutcomeKind.COMPLETED and record.slo_met


def _arrivals(world: ReplayScenario) -> Iterator[Arrival]:
    for one in world.asked:
        estimates = one.estimates(UNTOLD)
        yield Arrival(
            request=one.again(),
            estimate=partial(_told, estimates),
            output_tokens=one.output_tokens,
            weight=world.weights.get(one.request.tenant, 1.0),
        )


def _told(estimates: Estimates, _request: Request, _now_s: float) -> Estimates:
    return estimates
