"""The scenario through the simulation."""

from collections.abc import Callable, Mapping
from functools import partial

from hmas.controller.config.section import SloConfig
from hmas.controller.core.request_body import COMPLETIONS, read_call
from hmas.controller.core.types import Controls, Request
from hmas.controller.gateway.make_scheduler import make_scheduler
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation import Arrival, Periodic, simulate
from hmas.engines.base import Knobs
from hmas.engines.sim.model import EngineModel
from hmas_lab.parity.log import Decision, LoggedScheduler
from hmas_lab.parity.scenario import CHANGE_EVERY_S, ENGINES, MODEL, TENANTS, Call, Scenario, body_of, config_of, trace

_NOWHERE = "http://127.0.0.1:1"


def run_simulated(scenario: Scenario) -> list[Decision]:
    """The simulation's decision log."""
    log: list[Decision] = []
    config = config_of(scenario, dict.fromkeys(ENGINES, _NOWHERE), "")
    scheduler = make_scheduler(config, partial(LoggedScheduler, log=log))
    for name, profile in ENGINES.items():
        scheduler.set_models(name, frozenset({MODEL}))
        scheduler.set_controls(name, Controls(n_run=profile.max_num_seqs))
    history = History(SloConfig().targets())
    simulate(
        [_arrival(call, scenario, history) for call in trace(scenario)],
        {name: EngineModel(profile) for name, profile in ENGINES.items()},
        scheduler,
        controls=[Periodic(CHANGE_EVERY_S, _changes(scenario))],
        on_end=lambda ended, now_s: history.learn(completion_of(ended, now_s)),
        tick_s=scenario.tick_s,
    )
    return log


def _arrival(call: Call, scenario: Scenario, history: History) -> Arrival:
    request = Request(
        id=f"{call.index:06d}",
        tenant=call.tenant,
        model=MODEL,
        arrival_s=call.at_s,
        prompt_tokens=call.prompt_tokens,
        max_output_tokens=call.max_tokens,
        declared_slo=call.slo,
        deadline_s=call.at_s + scenario.timeout_s,
        session=str(call.index),
        stream=call.stream,
        blocks=read_call(COMPLETIONS, body_of(call), block_salt=call.tenant).blocks,
    )
    return Arrival(
        request=request,
        estimate=lambda asked, _now_s: history.estimate(asked),
        output_tokens=call.output_tokens,
        weight=TENANTS[call.tenant],
    )


def _changes(scenario: Scenario) -> Callable[[float, Scheduler, Mapping[str, EngineModel]], None]:
    """The operator's changes as a control law: one a beat, in order."""
    left = scenario.changes()

    def law(now_s: float, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        _, change = next(left)
        if change.policy:
            scheduler.set_policy(change.policy, now_s)
        for name, n_run in change.n_run.items():
            scheduler.set_controls(name, Controls(n_run=n_run))
            engines[name].apply_knobs(Knobs(n_run=n_run))
            # The gateway looks at an engine once more when it moves its knobs.
            scheduler.observe(engines[name].snapshot(name, now_s))

    return law
