"""One replay: recent traffic through the real scheduler and a model of the engines in virtual time, under one candidate. Pure.

A replay counts good requests: those that meet both targets (H-MAS Eq. 1), weighted by tenant, by the time slot of their arrival. Every
candidate sees the same arrivals with the same estimates, so differences come from the candidates alone.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from zlib import crc32

import msgspec
from msgspec.structs import replace

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import DEFAULT_ROUTER, make_router
from hmas.controller.scheduling.policies.registry import GUARD
from hmas.controller.scheduling.policies.robust_edf import RobustEdf
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, Periodic, RequestRecord, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile

SLOT_S = 5.0
"""Length of the slots of absolute time over which requests are summed, so that overlapping windows share their slots."""
GRACE_S = 120.0
"""Virtual time after the last arrival at which a replay ends; a request that has not ended by then counts as missed."""
REGULATED_S = 0.5
"""How often a replay applies the controls of that time."""
STRESS = 0.25
"""Share of the requests that `stressed` duplicates."""
_STRESSED = int((1 << 32) * STRESS)
UNTOLD = Estimates(slo=Slo(ttft_ms=1.0, tpot_ms=1.0))
"""Costs of a request without reported ones."""


class ReplayInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of the simulated fleet.

    Attributes:
        profile: Its step times.
        regulated: The controls that were active, each with its start; at least one. Where meta had set the window, the one without meta's.
        ceiling: The largest window that it can have.
        token_budget: Its active token budget; None for the profile's own.
        first_token_overhead_ms: Time beyond the prompt's own prefill within which most first tokens came; 0 if not known.
        models: Models that it serves, None for any.
        held: Whether a candidate's window does not apply, because an operator holds it or the gateway sets meta's windows aside.
    """

    name: str
    profile: Profile
    regulated: tuple[tuple[float, Controls], ...]
    ceiling: int
    token_budget: int | None = None
    first_token_overhead_ms: float = 0.0
    models: frozenset[str] | None = None
    held: bool = False

    def controls(self, candidate: Candidate, at_s: float) -> Controls:
        """Returns its controls at a time: those of that time, with the candidate's window if it has one and that applies."""
        place = bisect_right(self.regulated, at_s, key=itemgetter(0)) - 1
        given = self.regulated[max(0, place)][1]
        wanted = given.n_run if self.held else candidate.n_run or given.n_run
        return Controls(n_run=min(wanted, self.ceiling), guard=given.guard)


class ReplayScenario(msgspec.Struct, frozen=True, kw_only=True):
    """What all candidates of a replay have in common.

    Attributes:
        asked: Requests by rising arrival, at least one.
        plants: The fleet, at least one instance.
        settings, routing, weights: The gateway's admission settings, its router where a candidate has none of its own, and the tenants'
            weights (1 by default).
        from_s, until_s: The scored span of arrivals. Earlier requests fill the queue, later ones keep up the load.
        overdue: Requests that still waited at `until_s` although their first token was due.
        cost_threshold: Cost in tokens above which `robust-edf` defers requests at the start of the replay; 0 for none.
        drops_share: Whether the gateway does not follow a candidate's share of the TPOT guard.
    """

    asked: tuple[PastRequest, ...]
    plants: tuple[ReplayInstance, ...]
    settings: SchedulerSettings
    from_s: float
    until_s: float
    overdue: float = 0.0
    cost_threshold: float = 0.0
    routing: str = DEFAULT_ROUTER
    weights: Mapping[str, float] = {}
    drops_share: bool = False


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's result.

    Attributes:
        requests: Number of scored requests.
        good: Weighted share of them that met both targets, 0 to 1.
        slots: By slot number (arrival over SLOT_S): weight of the good requests, and of all.
        cost_thresholds: Once per slot, the time on the clock of the arrivals and the cost above which `robust-edf` deferred requests then,
            0 for none.
    """

    candidate: Candidate
    requests: int
    good: float
    slots: dict[int, tuple[float, float]]
    cost_thresholds: tuple[tuple[float, float], ...] = ()


def replay(world: ReplayScenario, candidate: Candidate) -> tuple[ReplayResult, list[RequestRecord]]:
    """Runs a window of the past under a candidate, starting with an empty queue.

    Returns:
        The result, and the records of all requests.

    Raises:
        PolicyError: There is no such policy or router, or it does not take a parameter.
    """
    by_cost = candidate.policy == RobustEdf.name
    parameters = {name: value for name, value in candidate.parameters.items() if name != GUARD or not world.drops_share}
    apart = [answer for asked in world.asked for answer in asked.apart()]
    scheduler = Scheduler(
        # The gateway counts a request with several answers once.
        settings=replace(world.settings, queue_limit=world.settings.queue_limit * len(apart) // len(world.asked)),
        instances=[
            InstanceSpec(
                name=plant.name,
                capacity_n_run=plant.ceiling,
                kv_capacity_tokens=plant.profile.kv_capacity_tokens,
                kv_bytes_per_token=plant.profile.kv_bytes_per_token,
                first_token_overhead_ms=plant.first_token_overhead_ms,
                models=plant.models,
            )
            for plant in world.plants
        ],
        router=make_router(candidate.router or world.routing),
        policy=candidate.policy,
        parameters={"cost_threshold": world.cost_threshold} | parameters if by_cost else parameters,
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
    result = simulate(
        _arrivals(apart, world.weights), engines, scheduler, controls=regulator, until_s=world.asked[-1].request.arrival_s + GRACE_S
    )
    # Of several answers to one request the first stands for it.
    asked = {one.request.id for one in world.asked}
    records = [record for record in result.records if record.request_id in asked]
    return replace(outlook_of(candidate, records, world), cost_thresholds=tuple(cost_thresholds)), records


def stressed(world: ReplayScenario) -> ReplayScenario:
    """The same scenario with a share `STRESS` of the requests from `from_s` on duplicated: always the same ones, at the same time.

    A replay ends with its window, and a backlog that has just begun to build has cost nothing by then. A window that is too narrow for the
    load looks as good as any until it is full, and even better, because the running requests are fast. More load makes the backlog visible.
    """
    more = [
        replace(one, request=replace(one.request, id=f"{one.request.id}*"), good=None)
        for one in world.asked
        if one.request.arrival_s >= world.from_s and crc32(one.request.id.encode()[::-1]) < _STRESSED
    ]
    return replace(world, asked=tuple(sorted((*world.asked, *more), key=lambda one: one.request.arrival_s)))


def outlook_of(candidate: Candidate, records: Sequence[RequestRecord], world: ReplayScenario) -> ReplayResult:
    """Sums the scored records of a replay by slots."""
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
    """Whether it met both targets (Eq. 1)."""
    return record.outcome is OutcomeKind.COMPLETED and record.slo_met


def _arrivals(apart: Sequence[PastRequest], weights: Mapping[str, float]) -> Iterator[Arrival]:
    for one in apart:
        estimates = one.estimates(UNTOLD)
        yield Arrival(
            request=one.again(),
            estimate=partial(_told, estimates),
            output_tokens=one.output_tokens,
            weight=weights.get(one.request.tenant, 1.0),
        )


def _told(estimates: Estimates, _request: Request, _now_s: float) -> Estimates:
    return estimates
