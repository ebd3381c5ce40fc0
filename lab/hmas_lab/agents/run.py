"""One simulated run: the scheduler that serves, engines in virtual time, and whoever tells it what requests are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.core.messages import RequestFeatures
from hmas.controller.core.slo import TargetTable
from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation import Arrival, Periodic, RequestRecord, SimulationResult, simulate
from hmas.controller.simulation.check import check
from hmas.controller.simulation.kernel import Control
from hmas.engines.sim.model import EngineModel
from hmas.loadgen.results import SIMULATED_OUTCOMES, Result, with_record
from hmas.loadgen.score import Score, score
from hmas.planning.case import AGENTS, Case
from hmas.planning.fleet import Fleet
from hmas.planning.report import LONG_TOKENS
from hmas.planning.running import build
from hmas.planning.steering import AgentSteering
from hmas_lab.agents.beliefs import Believer
from hmas_lab.agents.requests import Asked
from hmas_lab.agents.settings import Way


@dataclass(frozen=True, slots=True)
class Made:
    """What a run came to.

    Attributes:
        results: One per request, judged by the targets that its client really has.
        violations: What the independent checker found.
        switches: Changes of policy by meta.
        said: What perception said, by request id.
    """

    results: list[Result]
    violations: list[str]
    end_s: float
    switches: int
    said: dict[str, RequestFeatures]

    def score(self, *, warmup_s: float, duration_s: float) -> Score:
        """Its figures over what arrived after the warm-up."""
        return score(self.results, warmup_s=warmup_s, arrivals_end_s=duration_s, run_end_s=self.end_s)


def run(requests: Sequence[Asked], fleet: Fleet, way: Way, believer: Believer | None, *, answer_s: float, slo_scale: float) -> Made:
    """Serves the requests in virtual time.

    Nothing waits for the agents: a request is queued with the gateway's own history, and what they say reaches the scheduler `answer_s`
    later. They learn from what ends, as they do live.

    Args:
        requests: In order of arrival.
        fleet: The engines, with their windows.
        way: How they are scheduled.
        believer: Who tells what requests are; None for nobody.
        answer_s: From a request's arrival to the agents' answer.
        slo_scale: The table of targets as the gateway has it configured.
    """
    case = Case(
        workload="prompts",
        fleet=fleet,
        policy=way.policy,
        parameters=way.parameters,
        admission=way.admission,
        agents=AGENTS if way.steered else (),
        meta=way.agents,
    )
    steering = AgentSteering(case)
    history = steering.history = History(TargetTable(scale=slo_scale))
    scheduler, engines = build(case)

    def on_end(ended: Ended, now_s: float) -> None:
        steering.on_end(ended, now_s)
        if believer is not None:
            believer.learn(completion_of(ended, now_s))

    arrivals = [_arrival(one, history.estimate, believer, answer_s) for one in requests]
    controls = [
        *steering.controls(),
        *([] if believer is None else [Periodic(every_s=SchedulerConfig().tick_s, run=_watched_by(believer))]),
    ]
    result = simulate(arrivals, engines, scheduler, controls=controls, on_end=on_end)
    profiles = {name: kind.profile for name, kind in fleet.instances().items()}
    return Made(
        results=_results(requests, result),
        violations=check(arrivals, result, profiles=profiles, n_run=steering.widest),
        end_s=result.end_s,
        switches=len(steering.changes),
        said={} if believer is None else believer.said,
    )


def _arrival(one: Asked, estimate: Callable[[Request], Estimates], believer: Believer | None, answer_s: float) -> Arrival:
    def before(request: Request, _now_s: float) -> Estimates:
        return estimate(request)

    def answer(request: Request, now_s: float) -> Estimates | None:
        assert believer is not None
        return believer.answer(request, one.notice, estimate(request), now_s)

    return Arrival(
        request=one.request,
        estimate=before,
        output_tokens=one.truth.output_tokens,
        answer=None if believer is None else answer,
        answer_s=answer_s,
    )


def _watched_by(believer: Believer) -> Control:
    def watch(now_s: float, scheduler: Scheduler, _engines: Mapping[str, EngineModel]) -> None:
        believer.observe(scheduler.snapshot(now_s, "simulation"))

    return watch


def _results(requests: Sequence[Asked], result: SimulationResult) -> list[Result]:
    """The records as their clients would see them, with the targets that the clients really have."""
    by_id: dict[str, RequestRecord] = {record.request_id: record for record in result.records}
    return [_result(number, one, by_id[one.request.id]) for number, one in enumerate(requests)]


def _result(number: int, one: Asked, record: RequestRecord) -> Result:
    tokens = one.request.prompt_tokens + one.truth.output_tokens
    result = Result(
        index=number,
        at_s=record.arrival_s,
        kind=one.kind,
        tenant=record.tenant,
        task_type=one.truth.task,
        size="long" if tokens >= LONG_TOKENS else "short",
        prompt_tokens=record.prompt_tokens,
        wanted_tokens=one.truth.output_tokens,
        slo=one.truth.slo,
    )
    return with_record(
        result, record, outcome="timed_out" if record.outcome is None else SIMULATED_OUTCOMES[record.outcome], detail=record.reason
    )
