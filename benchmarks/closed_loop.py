"""The control loop in virtual time: the real scheduler and engine model, the agents' real models, no processes and no bus."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.meta.model import MetaModel
from agents.qos.model import QosModel
from agents.statera.model import StateraModel
from controller.core.messages import ControlAction, LongView, MetaDecision, ShortView
from controller.core.types import Controls, Request
from controller.routing import make_router
from controller.scheduling.endings import completion_of
from controller.scheduling.history import History
from controller.scheduling.outcomes import Ended, InstanceSpec, SchedulerSettings
from controller.scheduling.scheduler import Scheduler
from controller.simulation import Arrival, Periodic, SimulationResult, simulate
from engines.base import Knobs
from engines.sim.model import EngineModel
from engines.sim.profile import Profile
from hmas.lab.arrivals import ArrivalSpec
from hmas.lab.dataset import load_mixture
from hmas.lab.workload import WorkloadSpec, generate


@dataclass
class Loop:
    """One configuration of the loop. Without statera, `n_run` holds (0: the engine's ceiling); without meta, `policy` does."""

    profile: Profile
    engines: int = 1
    n_run: int = 0
    policy: str = "fcfs"
    overdue: str = "shed"
    overdue_service_share: float = 0.0
    tpot_guard: float = 0.0
    fence: bool = False
    statera: StateraModel | None = None
    meta: MetaModel | None = None
    qos: QosModel = field(default_factory=QosModel)
    period_s: float = 0.1
    actions: list[ControlAction] = field(default_factory=list)
    decisions: list[MetaDecision] = field(default_factory=list)
    views: deque[ShortView | LongView] = field(default_factory=lambda: deque(maxlen=20_000))

    def run(self, arrivals: Sequence[Arrival], history: History | None = None) -> SimulationResult:
        names = [f"engine-{i + 1}" for i in range(self.engines)]
        self._history = History() if history is None else history
        self._scheduler = Scheduler(
            settings=SchedulerSettings(
                overdue=self.overdue, overdue_service_share=self.overdue_service_share, tpot_guard=self.tpot_guard, fence=self.fence
            ),
            instances=[InstanceSpec(name=name, capacity_n_run=self.profile.max_num_seqs) for name in names],
            router=make_router("least-loaded"),
            policy=self.policy,
        )
        for name in names:
            self._scheduler.set_controls(name, Controls(n_run=self.n_run or self.profile.max_num_seqs))
        models = {name: EngineModel(self.profile) for name in names}
        controls = [Periodic(every_s=self.period_s, run=self._cycle)]
        return simulate(arrivals, models, self._scheduler, controls=controls, on_end=self._ended)

    def _ended(self, ended: Ended, now_s: float) -> None:
        completion = completion_of(ended, now_s)
        self._history.learn(completion)
        self.qos.complete(completion, now_s)

    def _cycle(self, now_s: float, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        for view in self.qos.observe(scheduler.snapshot(now_s, "gateway"), now_s):
            self.views.append(view)
            if isinstance(view, ShortView) and self.statera is not None:
                for action in self.statera.observe(view, now_s):
                    self._apply(action, scheduler, engines)
            if self.meta is not None:
                decisions = self.meta.on_short(view, now_s) if isinstance(view, ShortView) else self.meta.on_long(view, now_s)
                for decision in decisions:
                    self.decisions.append(decision)
                    scheduler.set_policy("fcfs" if decision.bypass else decision.policy, now_s, {} if decision.bypass else decision.hints)

    def _apply(self, action: ControlAction, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        self.actions.append(action)
        scheduler.set_controls(action.instance, Controls(n_run=action.n_run, token_budget=action.token_budget or None))
        if action.token_budget:
            engines[action.instance].apply_knobs(Knobs(token_budget=action.token_budget))
        scheduler.set_length_bounds(action.length_bounds)


def goodput_rps(result: SimulationResult, warm_s: float, end_s: float) -> float:
    """Requests per second that met both targets, of those that arrived between `warm_s` and `end_s`."""
    return sum(record.slo_met for record in result.records if warm_s <= record.arrival_s < end_s) / (end_s - warm_s)


def mixed_arrivals(
    *, mean_rps: float, duration_s: float, seed: int, slo_scale: float, history: History, process: str = "bursty"
) -> list[Arrival]:
    """The project's mixed workload (datasets/mixed.json), with estimates from `history`, as before any agent has spoken."""
    mixture, prompts = load_mixture()
    spec = WorkloadSpec(arrivals=ArrivalSpec(mean_rps=mean_rps, duration_s=duration_s, process=process), seed=seed, slo_scale=slo_scale)
    return [
        Arrival(
            request=Request(
                id=f"{index:08d}",
                tenant=arrival.tenant,
                model="model",
                arrival_s=arrival.at_s,
                prompt_tokens=arrival.prompt_tokens,
                max_output_tokens=arrival.max_tokens,
                declared_slo=arrival.slo,
            ),
            estimate=lambda request, _now_s: history.estimate(request),
            output_tokens=arrival.output_tokens,
        )
        for index, arrival in enumerate(generate(spec, mixture, prompts))
    ]
