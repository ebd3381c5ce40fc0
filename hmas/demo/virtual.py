"""Runs of the demo's workload in virtual time, with the same scheduler and engine model as the live runs."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from hmas.controller.config.slo import SloConfig
from hmas.controller.core.types import DEFAULT_IMPORTANCE, Controls, Estimates, OutcomeKind, Request, TaskType
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival as SimArrival
from hmas.controller.simulation import RequestRecord, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile
from hmas.loadgen.results import ClientOutcome, Result
from hmas.loadgen.simulated import result_of
from hmas.loadgen.workload import Arrival

Overdue = Literal["keep", "demote", "shed"]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A static configuration of the scheduler.

    Attributes:
        name: Its name in the report.
        n_run: Requests in flight per engine, 0 for the engine's ceiling.
        overdue: The treatment of a request whose TTFT deadline has passed before dispatch.
        token_budget: Tokens per engine step, 0 for the engine's own.
        foresight: Whether a live gateway without agents admits as with agents (fence, TPOT guard, predicted lateness).
    """

    name: str
    policy: str = "fcfs"
    n_run: int = 0
    overdue: Overdue = "keep"
    token_budget: int = 0
    foresight: bool = False


def run_virtual(arrivals: Sequence[Arrival], profile: Profile, variant: Variant, *, engines: int) -> tuple[list[Result], float]:
    """Returns the results as a client without network would measure them, and the virtual time at the end."""
    names = [f"engine-{i + 1}" for i in range(engines)]
    n_run = variant.n_run or profile.max_num_seqs
    scheduler = Scheduler(
        settings=SchedulerSettings(overdue=variant.overdue, fence=False),
        instances=[InstanceSpec(name=name, capacity_n_run=profile.max_num_seqs) for name in names],
        router=make_router("least-loaded"),
        policy=variant.policy,
    )
    for name in names:
        scheduler.set_controls(name, Controls(n_run=n_run))
    models = {name: EngineModel(profile, token_budget=variant.token_budget or None) for name in names}
    outcome = simulate([_sim_arrival(i, a) for i, a in enumerate(arrivals)], models, scheduler)
    return [_result(i, a, r) for i, (a, r) in enumerate(zip(arrivals, outcome.records, strict=True))], outcome.end_s


def _sim_arrival(index: int, arrival: Arrival) -> SimArrival:
    request = Request(
        id=f"{index:08d}",
        tenant=arrival.tenant,
        model="demo",
        arrival_s=arrival.at_s,
        prompt_tokens=arrival.prompt_tokens,
        max_output_tokens=arrival.max_tokens or None,
        declared_slo=arrival.slo if arrival.declares else None,
    )
    # A gateway without agents applies the targets of an unknown task to a request that declares none.
    slo = arrival.slo if arrival.declares else SloConfig().targets().target(TaskType.UNKNOWN, DEFAULT_IMPORTANCE)
    return SimArrival(request=request, estimate=lambda _request, _now_s: Estimates(slo=slo), output_tokens=arrival.output_tokens)


_OUTCOMES: dict[OutcomeKind | None, ClientOutcome] = {
    OutcomeKind.COMPLETED: "completed",
    OutcomeKind.REJECTED: "rejected",
    OutcomeKind.SHED: "shed",
    OutcomeKind.TIMED_OUT: "timed_out",
    OutcomeKind.FAILED: "failed",
}


def _result(index: int, arrival: Arrival, record: RequestRecord) -> Result:
    result = result_of(
        record,
        index=index,
        kind=arrival.kind,
        task_type=arrival.task_type,
        size=arrival.size,
        wanted_tokens=arrival.output_tokens,
        slo=arrival.slo,
        outcome=_OUTCOMES.get(record.outcome, "lost"),
        detail=record.reason,
    )
    result.streamed = arrival.body is None or arrival.body.streamed
    result.capped, result.declared = arrival.max_tokens > 0, arrival.declares
    return result
