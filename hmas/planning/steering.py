"""The agents' own models at the simulated gateway, with the same telemetry, views, decisions and precedence as in a live system.

The bus and its delays are left out: agents answer a view at the moment it is made. Perception and prediction do not take part, because
they read prompts and a simulated request has none. The estimates of a request are those that a gateway makes without them, from the
history of its tenant and length.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from hmas.agents.meta.agent import MetaAgent
from hmas.agents.meta.make import Meta, make_meta
from hmas.agents.meta.twin.twin import Twin
from hmas.agents.qos import agent as qos_agent
from hmas.agents.statera import agent as statera_agent
from hmas.agents.statera.agent import StateraAgent
from hmas.controller.config.schema import AgentsConfig, Config, SchedulerConfig
from hmas.controller.config.slo import SloConfig
from hmas.controller.control.resolve import Ceiling, Configured, Directives, Received, resolve
from hmas.controller.core.messages import (
    ControlAction,
    DecisionOutcome,
    LongView,
    Message,
    MetaDecision,
    OverrideNotice,
    ShortView,
    SystemSnapshot,
)
from hmas.controller.core.types import Estimates, Request
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation import Periodic
from hmas.engines.base import Knobs
from hmas.engines.sim.model import EngineModel
from hmas.planning.case import Case
from hmas.planning.faults import Faults

META_MAX_AGE_S = MetaAgent.max_age_s
NOTED = 10_000
"""Most policy changes that are kept for the report."""


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of policy by meta."""

    at_s: float
    before: str
    after: str
    reason: str


class AgentSteering:
    """Gives telemetry to the case's agents and applies their decisions to the scheduler.

    Args:
        case: The case, which names the agents.
        viewed: Called with each view that qos makes, before agents act on it.

    Attributes:
        history: Lengths and times that the gateway has learnt.
        actions: Number of control actions of statera.
        changes: Policy changes of meta, in order of time.
        widest: The largest active window so far, by instance.
    """

    def __init__(self, case: Case, viewed: Callable[[ShortView | LongView], None] = lambda _view: None) -> None:
        self._viewed = viewed
        self.history = History(SloConfig().targets())
        self.actions = 0
        self.changes: list[PolicyChange] = []
        kinds = case.fleet.instances()
        self.widest = {name: kind.n_run for name, kind in kinds.items()}
        self._agents = case.agents
        self._twin: Twin | None = None
        settings = msgspec.convert(case.meta, AgentsConfig)
        config = Config(scheduler=msgspec.convert({"policy": case.policy}, SchedulerConfig), agents=settings)
        self._settings: AgentsConfig = config.agents
        self._tick_s = config.scheduler.tick_s
        self._config = config
        self._case = case
        self._faults = Faults(case.faults, case.seed)
        self._start_qos()
        self._statera: StateraAgent | None = None
        self._meta: Meta | None = None
        if "statera" in case.agents:
            self._start_statera()
        if "meta" in case.agents:
            self._start_meta()
        self._configured = Configured(policy=case.policy, n_run=0)
        self._ceilings = {name: Ceiling(kind.n_run, kind.token_budget) for name, kind in kinds.items()}
        self._heard_meta: Received[MetaDecision] | None = None
        self._heard_statera: dict[str, Received[ControlAction]] = {}
        self._in_force: Directives | None = None

    def controls(self) -> Sequence[Periodic]:
        """Control laws for the simulation; empty if the case has no agents."""
        return [Periodic(every_s=self._tick_s, run=self._cycle)] if self._agents else []

    def _start_qos(self) -> None:
        self._qos = qos_agent.make_agent(self._config).model

    def _start_statera(self) -> None:
        self._statera = statera_agent.make_agent(self._config)

    def _start_meta(self) -> None:
        # The twin uses measurements of the engines, as it does for engines without a profile.
        self._meta = make_meta(self._config, admission=self._case.admission, routing=self._case.router)
        self._twin = self._meta.twin

    def on_end(self, ended: Ended, now_s: float) -> None:
        """Passes the telemetry of an ended request to history and agents."""
        completion = completion_of(ended, now_s)
        self.history.learn(completion)
        if not self._agents:
            return
        for heard in self._faults.heard("qos", "completions", [completion], now_s) if self._faults else [completion]:
            self._qos.complete(heard, now_s)
        if self._twin is not None:
            for heard in self._faults.heard("meta", "completions", [completion], now_s) if self._faults else [completion]:
                self._twin.observe(heard)

    def estimate(self, request: Request, _now_s: float) -> Estimates:
        """The estimates of a request at its arrival."""
        believed = self.history.estimate(request)
        if self._twin is not None:
            self._twin.traffic.came(request, believed)
        return believed

    def _cycle(self, now_s: float, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        snapshot = scheduler.snapshot(now_s, "simulation")
        if self._faults:
            said = self._troubled(snapshot, now_s)
        else:
            if self._twin is not None:
                self._twin.observe(snapshot)
            views = self._qos.observe(snapshot, now_s)
            said = [*self._actions(views, now_s), *self._decisions(views, now_s)]
        for message in said:
            if isinstance(message, ControlAction):
                self._heard_statera[message.instance] = Received(message.sent_s, message)
                self.actions += 1
            else:
                self._heard_meta = Received(message.sent_s, message)
        # With faults the directives are applied even without messages, because an agent's silence matters too.
        if said or self._faults:
            self._apply(scheduler, engines, now_s)

    def _actions(self, views: Sequence[ShortView | LongView], now_s: float) -> list[ControlAction]:
        """Statera's actions on the views that are not too old for it."""
        found: list[ControlAction] = []
        for view in views:
            self._viewed(view)
            if isinstance(view, ShortView) and self._statera is not None and not _is_old(view, self._statera.max_age_s, now_s):
                found += self._statera.model.observe(view, now_s)
        if self._twin is not None:
            for action in found:
                self._twin.observe(action)
        return found

    def _decisions(self, views: Sequence[ShortView | LongView], now_s: float) -> list[MetaDecision]:
        """Meta's decisions on the views; outcomes of earlier decisions are left out, as they are only for operators."""
        found: list[MetaDecision] = []
        for view in views:
            if self._meta is not None and not _is_old(view, META_MAX_AGE_S, now_s):
                said = [*self._meta.on_view(view, now_s), *self._meta.think(now_s)]
                found += [one for one in said if not isinstance(one, DecisionOutcome)]
        return found

    def _troubled(self, snapshot: SystemSnapshot, now_s: float) -> list[ControlAction | MetaDecision]:
        """One cycle with faults of agents."""
        faults = self._faults
        starts = {"qos": self._start_qos, "statera": self._start_statera, "meta": self._start_meta}
        for agent in faults.restarts(now_s):
            starts[agent]()
        if self._twin is not None:
            for heard in faults.heard("meta", "snapshots", [snapshot], now_s):
                self._twin.observe(heard)
        views: list[ShortView | LongView] = []
        for heard in faults.heard("qos", "snapshots", [snapshot], now_s):
            views += self._qos.observe(heard, now_s)
        late = faults.due(now_s)
        views = [*(one for one in late if isinstance(one, ShortView | LongView)), *faults.said("qos", views, now_s)]
        actions = faults.said("statera", self._actions(faults.heard("statera", "views", views, now_s), now_s), now_s)
        decisions = faults.said("meta", self._decisions(faults.heard("meta", "views", views, now_s), now_s), now_s)
        return [*(one for one in late if isinstance(one, ControlAction | MetaDecision)), *actions, *decisions]

    def _apply(self, scheduler: Scheduler, engines: Mapping[str, EngineModel], now_s: float) -> None:
        """Resolves the directives after a message of an agent and applies the differences, as the gateway does."""
        before = self._in_force
        after = resolve(
            self._configured,
            self._ceilings,
            self._heard_meta,
            self._heard_statera,
            OverrideNotice(sent_s=now_s),
            now_s=now_s,
            stale_after_s=self._settings.stale_after_s,
        )
        self._in_force = after
        if self._heard_meta is not None and (after.policy.value, dict(after.parameters)) != (scheduler.policy, dict(scheduler.parameters)):
            policy_before = scheduler.policy
            if scheduler.set_policy(after.policy.value, now_s, after.parameters) and len(self.changes) < NOTED:
                told = PolicyChange(at_s=now_s, before=policy_before, after=after.policy.value, reason=after.policy.reason)
                self.changes.append(told)
        for name, directive in after.instances.items():
            if before is None or directive.controls != before.instances[name].controls:
                scheduler.set_controls(name, directive.controls)
                if directive.controls.token_budget is not None:
                    engines[name].apply_knobs(Knobs(token_budget=directive.controls.token_budget))
                self.widest[name] = max(self.widest[name], directive.controls.n_run)
        if before is None or after.bounds != before.bounds:
            scheduler.set_length_bounds(after.bounds)


def _is_old(message: ShortView | LongView, max_age_s: Mapping[type[Message], float], now_s: float) -> bool:
    """Whether a view is so old that an agent's process would discard it."""
    return now_s - message.sent_s > max_age_s.get(type(message), float("inf"))
