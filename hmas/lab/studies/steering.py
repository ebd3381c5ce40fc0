"""The agents' own models at the simulated gateway: the same telemetry, views, decisions and order of precedence as with the real ones.

What is left out is the bus and its delays: a view is answered in the moment it is made. Perception and prediction have no part in it: they
read prompts, and a simulated request has none. What is believed about a request is what a gateway believes before they speak: the history
of its tenant and length.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from agents.meta.make import Meta, make_meta
from agents.qos import agent as qos_agent
from agents.statera import agent as statera_agent
from controller.config.schema import AgentsConfig, Config, SchedulerConfig
from controller.core.messages import ControlAction, DecisionOutcome, LongView, MetaDecision, OverrideNotice, ShortView
from controller.core.types import Estimates, Request
from controller.gateway.directives import Ceiling, Configured, Directives, Heard, resolve
from controller.scheduling.endings import completion_of
from controller.scheduling.history import History
from controller.scheduling.outcomes import Ended
from controller.scheduling.scheduler import Scheduler
from controller.simulation import Periodic
from engines.base import Knobs
from engines.sim.model import EngineModel
from hmas.lab.studies.case import Case

NOTED = 10_000
"""Changes of policy that are kept for the report."""


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that meta put in force."""

    at_s: float
    before: str
    after: str
    reason: str


class Steering:
    """Listens to what ends and steers the scheduler, as the case says.

    Args:
        case: Who steers.
        viewed: Called with each view that qos makes, before it is acted on.

    Attributes:
        history: What the gateway has learnt of lengths and times.
        actions: Control actions of statera, counted.
        changes: Policies that meta changed, in order of time.
        widest: The largest window that was in force, by instance.
    """

    def __init__(self, case: Case, viewed: Callable[[ShortView | LongView], None] = lambda _view: None) -> None:
        self._viewed = viewed
        self.history = History()
        self.actions = 0
        self.changes: list[PolicyChange] = []
        kinds = case.fleet.instances()
        self.widest = {name: kind.n_run for name, kind in kinds.items()}
        self._agents = case.agents
        settings = msgspec.convert(case.meta, AgentsConfig)
        config = Config(scheduler=msgspec.convert({"policy": case.policy}, SchedulerConfig), agents=settings)
        self._settings: AgentsConfig = config.agents
        self._tick_s = config.scheduler.tick_s
        self._qos = qos_agent.make_agent(config).model
        # The twin stands on what the engines have shown, as it does where their profile is not known.
        self._meta: Meta | None = make_meta(config, admission=case.admission, routing=case.router) if "meta" in case.agents else None
        self._twin = self._meta.twin if self._meta is not None else None
        self._statera = statera_agent.make_agent(config).model if "statera" in case.agents else None
        self._configured = Configured(policy=case.policy, n_run=0)
        self._ceilings = {name: Ceiling(kind.n_run, kind.token_budget) for name, kind in kinds.items()}
        self._heard_meta: Heard[MetaDecision] | None = None
        self._heard_statera: dict[str, Heard[ControlAction]] = {}
        self._in_force: Directives | None = None

    def controls(self) -> Sequence[Periodic]:
        """Control laws for the simulation; none where nobody steers."""
        return [Periodic(every_s=self._tick_s, run=self._cycle)] if self._agents else []

    def on_end(self, ended: Ended, now_s: float) -> None:
        """Telemetry."""
        completion = completion_of(ended, now_s)
        self.history.learn(completion)
        if self._agents:
            self._qos.complete(completion, now_s)
        if self._twin is not None:
            self._twin.hear(completion)

    def estimate(self, request: Request, _now_s: float) -> Estimates:
        """What is believed of a request when it comes."""
        believed = self.history.estimate(request)
        if self._twin is not None:
            self._twin.traffic.came(request, believed)
        return believed

    def _cycle(self, now_s: float, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        heard = False
        snapshot = scheduler.snapshot(now_s, "simulation")
        if self._twin is not None:
            self._twin.hear(snapshot)
        for view in self._qos.observe(snapshot, now_s):
            self._viewed(view)
            if isinstance(view, ShortView) and self._statera is not None:
                for action in self._statera.observe(view, now_s):
                    self._heard_statera[action.instance] = Heard(now_s, action)
                    if self._twin is not None:
                        self._twin.hear(action)
                    self.actions += 1
                    heard = True
            if self._meta is not None:
                for said in [*self._meta.on_view(view, now_s), *self._meta.think(now_s)]:
                    if isinstance(said, DecisionOutcome):
                        continue
                    self._heard_meta = Heard(now_s, said)
                    heard = True
        if heard:
            self._apply(scheduler, engines, now_s)

    def _apply(self, scheduler: Scheduler, engines: Mapping[str, EngineModel], now_s: float) -> None:
        """What the gateway does when an agent has spoken: resolve anew, move what is different."""
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
        if self._heard_meta is not None and (after.policy.value, dict(after.hints)) != (scheduler.policy, dict(scheduler.hints)):
            policy_before = scheduler.policy
            if scheduler.set_policy(after.policy.value, now_s, after.hints) and len(self.changes) < NOTED:
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
