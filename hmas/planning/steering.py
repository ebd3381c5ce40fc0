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
from hmas.controller.config.section import SloConfig
from hmas.controller.control.apply import apply_directives, with_settings
from hmas.controller.control.resolve import Ceiling, Configured, Directives, Received, resolve
from hmas.controller.core.messages import (
    Completion,
    ControlAction,
    DecisionOutcome,
    LongView,
    Message,
    MetaDecision,
    OverrideNotice,
    ShortView,
)
from hmas.controller.core.types import Controls, Estimates, Request
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation import Periodic
from hmas.engines.base import Knobs
from hmas.engines.sim.model import EngineModel
from hmas.planning.case import Case

META_MAX_AGE_S = MetaAgent.max_age_s
NOTED = 10_000
"""Most policy changes that are kept for the report."""


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of policy or router by meta."""

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
        qos, statera, meta: The agents, None where the case does not name one. `twin`: meta's, None where it has none.
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
        self.twin: Twin | None = None
        scheduling = msgspec.convert({"policy": case.policy, "parameters": case.parameters}, SchedulerConfig)
        self._config = Config(scheduler=scheduling, agents=msgspec.convert(case.meta, AgentsConfig))
        self._case = case
        self.statera: StateraAgent | None = None
        self.meta: Meta | None = None
        for agent in ("qos", *case.agents):
            self.start(agent)
        self._configured = Configured(policy=case.policy, n_run=0, parameters=case.parameters, routers={"*": case.router})
        self._ceilings = {name: Ceiling(kind.n_run, kind.token_budget) for name, kind in kinds.items()}
        self._heard_meta: Received[MetaDecision] | None = None
        self._heard_statera: dict[str, Received[ControlAction]] = {}
        self._in_force = self._resolve(0.0)

    def controls(self) -> Sequence[Periodic]:
        """Control laws for the simulation; empty if the case has no agents."""
        return [Periodic(every_s=self._config.scheduler.tick_s, run=self.cycle)] if self._case.agents else []

    def start(self, agent: str) -> None:
        """Starts an agent, or replaces it by one without state."""
        if agent == "qos":
            self.qos = qos_agent.make_agent(self._config).model
        elif agent == "statera":
            self.statera = statera_agent.make_agent(self._config)
        else:
            # The twin uses measurements of the engines, as it does for engines without a profile.
            self.meta = make_meta(self._config, admission=self._case.admission, routing=self._case.router)
            self.twin = self.meta.twin

    def on_end(self, ended: Ended, now_s: float) -> None:
        """Passes the telemetry of an ended request to history and agents."""
        completion = completion_of(ended, now_s)
        self.history.learn(completion)
        if self._case.agents:
            self.complete(completion, now_s)

    def complete(self, completion: Completion, now_s: float) -> None:
        """Passes a completion to the agents that read it."""
        self.qos.complete(completion, now_s)
        if self.twin is not None:
            self.twin.observe(completion)

    def estimate(self, request: Request, _now_s: float) -> Estimates:
        """The estimates of a request at its arrival."""
        believed = self.history.estimate(request)
        if self.twin is not None:
            self.twin.traffic.came(request, believed)
        return believed

    def cycle(self, now_s: float, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        """One cycle of the gateway: a snapshot for the agents, and their answers in force."""
        snapshot = with_settings(scheduler.snapshot(now_s, "simulation"), self._in_force)
        if self.twin is not None:
            self.twin.observe(snapshot)
        views = self.qos.observe(snapshot, now_s)
        said: list[ControlAction | MetaDecision] = [*self.actions_on(views, now_s), *self.decisions_on(views, now_s)]
        if said:
            self.apply(said, scheduler, engines, now_s)

    def actions_on(self, views: Sequence[ShortView | LongView], now_s: float) -> list[ControlAction]:
        """Statera's actions on the views that are not too old for it."""
        found: list[ControlAction] = []
        for view in views:
            self._viewed(view)
            if isinstance(view, ShortView) and self.statera is not None and not _is_old(view, self.statera.max_age_s, now_s):
                found += self.statera.model.observe(view, now_s)
        return found

    def decisions_on(self, views: Sequence[ShortView | LongView], now_s: float) -> list[MetaDecision]:
        """Meta's decisions on the views; outcomes of earlier decisions are left out, as they are only for operators."""
        found: list[MetaDecision] = []
        for view in views:
            if self.meta is not None and not _is_old(view, META_MAX_AGE_S, now_s):
                said = [*self.meta.on_view(view, now_s), *self.meta.think(now_s)]
                found += [one for one in said if not isinstance(one, DecisionOutcome)]
        return found

    def apply(
        self, said: Sequence[ControlAction | MetaDecision], scheduler: Scheduler, engines: Mapping[str, EngineModel], now_s: float
    ) -> None:
        """Takes the agents' messages, resolves the directives and applies the differences, as the gateway does."""
        for message in said:
            if isinstance(message, ControlAction):
                self._heard_statera[message.instance] = Received(message.sent_s, message)
                self.actions += 1
            else:
                self._heard_meta = Received(message.sent_s, message)
        before, policy_before = self._in_force, scheduler.policy
        after = self._in_force = self._resolve(now_s)

        def on_controls(name: str, controls: Controls) -> None:
            if controls.token_budget is not None:
                engines[name].apply_knobs(Knobs(token_budget=controls.token_budget))
            self.widest[name] = max(self.widest[name], controls.n_run)

        changed = apply_directives(scheduler, before, after, names=after.instances, now_s=now_s, on_controls=on_controls)
        found = [(policy_before, after.policy)] if changed else []
        if (router := after.routers["*"]).value != before.routers["*"].value:
            found.append((before.routers["*"].value, router))
        told = [PolicyChange(at_s=now_s, before=was, after=now.value, reason=now.reason or after.policy.reason) for was, now in found]
        self.changes += told[: NOTED - len(self.changes)]

    def _resolve(self, now_s: float) -> Directives:
        return resolve(
            self._configured,
            self._ceilings,
            self._heard_meta,
            self._heard_statera,
            OverrideNotice(sent_s=now_s),
            now_s=now_s,
            stale_after_s=self._config.agents.stale_after_s,
        )


def _is_old(message: ShortView | LongView, max_age_s: Mapping[type[Message], float], now_s: float) -> bool:
    """Whether a view is so old that an agent's process would discard it."""
    return now_s - message.sent_s > max_age_s.get(type(message), float("inf"))
