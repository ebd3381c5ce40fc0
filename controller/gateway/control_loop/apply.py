"""Maintains the active settings: receives proposals and overrides, resolves them, and applies changes to scheduler and engines."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hmas.controller.config.derived import routers
from hmas.controller.config.schema import Config
from hmas.controller.control.agent_scores import BOUNDS
from hmas.controller.control.apply import apply_directives
from hmas.controller.control.changes import Change, changes
from hmas.controller.control.overrides import Override
from hmas.controller.control.resolve import (
    META,
    STATERA,
    Ceiling,
    Configured,
    Directives,
    Received,
    limits_for,
    newest_bounds,
    resolve,
)
from hmas.controller.core.errors import PolicyError, SchedulingError
from hmas.controller.core.messages import ControlAction, LengthBound, MetaDecision, OverrideNotice
from hmas.controller.gateway.instances.monitor import Fleet
from hmas.controller.observability.observer import Observers
from hmas.controller.routing.registry import read_router
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.admission.quotas import TenantLimits
from hmas.controller.scheduling.policies.registry import GUARD, make_policy
from hmas.controller.scheduling.scheduler import Scheduler

MAX_SKEW_S = 5.0
"""A message with a timestamp further ahead than this comes from a wrong clock and counts as sent now."""
AGAIN_S = 5.0
"""How long after a policy was given up it is tried again."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Since:
    """The times since when the settings have been active, and why the policy was changed then; empty if it never was."""

    policy_s: float
    policy_reason: str = ""
    knobs_s: dict[tuple[str, str], float] = field(default_factory=dict)


class Proposal(NamedTuple):
    """An agent's proposal for an instance: a window, 0 for none, whether it is active, and whether the TPOT guard is now stricter."""

    agent: str
    n_run: int
    sets_window: bool
    tightens_guard: bool


class Control:
    """The only place in the gateway that sets policy, windows, bounds, draining, and the weights and limits of tenants."""

    def __init__(self, *, config: Config, scheduler: Scheduler, fleet: Fleet, observer: Observers, clock: Clock) -> None:
        self._config = config
        self._scheduler = scheduler
        self._fleet = fleet
        self._observer = observer
        self._clock = clock
        self._configured = _configured(config)
        self.meta: Received[MetaDecision] | None = None
        self.statera: dict[str, Received[ControlAction]] = {}
        self.notice = OverrideNotice(sent_s=clock.now_s())
        self.since = Since(policy_s=clock.now_s())
        self._stale_s = float("inf")
        self._changed: set[str] = set()
        # The policy and parameters that could not be applied, while they are still wanted.
        self._given_up: tuple[str, Mapping[str, float]] | None = None
        # Length bounds may hold requests back, so they are used only once they have proven right.
        self._aside: frozenset[tuple[str, str]] = frozenset({(STATERA, BOUNDS)} if config.agents.set_aside else ())
        self.directives = self._resolve(fleet.ceilings)
        for name, directive in self.directives.instances.items():
            scheduler.set_controls(name, directive.controls)
            fleet.set_controls(name, directive.controls)
        # Agents hear of the weights in the scheduler's snapshots.
        scheduler.set_weights(self.directives.weights)

    def weight_of(self, tenant: str) -> float:
        """The tenant's active weight."""
        return self.directives.weights.get(tenant, 1.0)

    def on_decision(self, decision: MetaDecision) -> None:
        """Takes meta's decision. One with a policy, parameter or router that does not exist is refused; an older one changes nothing."""
        if decision.n_run < 0:
            self._reject("meta", decision.decision_id, f"n_run is {decision.n_run}; allowed: 0 or more")
            return
        if not decision.bypass:
            try:
                make_policy(decision.policy, decision.parameters)
                if decision.router:
                    read_router(decision.router)
            except PolicyError as error:
                self._reject("meta", decision.decision_id, str(error))
                return
        if self._is_old(decision.sent_s, self.meta):
            return
        self.meta = Received(self._sent_s(decision.sent_s), decision)
        self.apply()

    def on_action(self, action: ControlAction) -> None:
        """Takes statera's action; `settle` applies it. Invalid values are refused and change nothing."""
        if action.instance not in self._fleet.instances:
            self._reject("statera", action.instance, f"instance {action.instance!r} is not configured here")
            return
        if action.n_run < 1 or action.token_budget < 0:
            text = f"n_run {action.n_run} and token_budget {action.token_budget}; allowed: n_run 1 or more, token_budget 0 or more"
            self._reject("statera", action.instance, text)
            return
        if not 0.0 < action.guard <= 1.0:
            self._reject("statera", action.instance, f"guard is {action.guard}; allowed: above 0 to 1")
            return
        if self._is_old(action.sent_s, self.statera.get(action.instance)):
            return
        self.statera[action.instance] = Received(self._sent_s(action.sent_s), action)
        self._changed.add(action.instance)

    def settle(self) -> None:
        """Applies statera's actions and changed ceilings. It resolves only these instances, unless another message has become stale."""
        if not self._changed:
            return
        now_s, agents, names = self._clock.now_s(), self._config.agents, self._changed
        messages = [self.statera[name] for name in names if name in self.statera]
        if now_s >= self._stale_s or not all(message.fresh(now_s, agents.stale_after_s) for message in messages):
            self.apply()
            return
        self._changed = set()
        self._stale_s = min([self._stale_s, *(message.said_s + agents.stale_after_s for message in messages)])
        before, ceilings = self.directives, {name: self._fleet.instances[name].ceiling for name in names}
        after = self._resolve(ceilings, before)
        if any(after.instances[name] != before.instances[name] for name in names) or after.bounds != before.bounds:
            self._activate(after, names)

    def proposals(self, instance: str) -> list[Proposal]:
        """The proposals of agents for an instance, active or set aside; silent agents are left out."""
        agents, now_s, directives = self._config.agents, self._clock.now_s(), self.directives
        active = directives.instances[instance]
        found = []
        action = self.statera.get(instance)
        if agents.enabled and action is not None and action.fresh(now_s, agents.stale_after_s):
            tight = active.guard.source == STATERA and active.controls.guard < 1.0
            found.append(Proposal(STATERA, action.word.n_run, active.n_run.source == STATERA, tight))
        if agents.enabled and self.meta is not None and self.meta.fresh(now_s, agents.stale_after_s) and not self.meta.word.bypass:
            share = directives.parameters.get(GUARD) if directives.policy.source == META else None
            tight = share is not None and share < self._configured.tpot_guard
            found.append(Proposal(META, self.meta.word.n_run, active.n_run.source == META, tight))
        return found

    def proposed_bounds(self) -> tuple[LengthBound, ...]:
        """The length bounds that statera proposes, active or set aside; empty if it is silent."""
        agents = self._config.agents
        return newest_bounds(self.statera, self._clock.now_s(), agents.stale_after_s) if agents.enabled else ()

    def set_aside(self, agent: str, answers: str, *, aside: bool) -> None:
        """Sets an agent's windows aside, or statera's length bounds; or uses them again. `answers`: `WINDOWS` or `BOUNDS`."""
        one = frozenset({(agent, answers)})
        self._aside = self._aside | one if aside else self._aside - one
        self.apply()

    def resume(self, decisions: Sequence[MetaDecision], actions: Sequence[ControlAction]) -> None:
        """Restores the last valid state from before a restart; the resolver drops stale messages as it does for silent agents."""
        stale_s = self._clock.now_s() - self._config.agents.stale_after_s
        for decision in decisions:
            if decision.sent_s >= stale_s:
                self.on_decision(decision)
        for action in actions:
            if action.sent_s >= stale_s:
                self.on_action(action)
        self.settle()

    def hold(self, notice: OverrideNotice) -> None:
        """Applies a changed set of operator overrides."""
        self.notice = notice
        self.apply()

    def faults(self, override: Override, *, may_join: bool = False) -> list[str]:
        """The parts of a well-formed override that this gateway cannot apply, each with its JSON path.

        `may_join`: an engine that it names and that is not there is no fault.
        """
        named = (*override.knobs, *override.draining) if may_join else ()
        return override_faults(override, dict.fromkeys((*self._fleet.instances, *named)), self._configured.limits)

    def reload(self, config: Config) -> None:
        """Applies a changed configuration of policy, windows, weights and limits; settings of agents and operators keep precedence."""
        self._config, self._configured = config, _configured(config)
        self.apply()

    def forget(self, instance: str) -> None:
        """Forgets an instance that has left."""
        self.statera.pop(instance, None)
        for knob in [key for key in self.since.knobs_s if key[0] == instance]:
            del self.since.knobs_s[knob]
        # The next tick resolves all again: many may leave at once.
        self._stale_s = float("-inf")

    def on_ceiling(self, instance: str) -> None:
        """Applies the changed ceiling of an instance."""
        self._changed.add(instance)
        self.settle()

    def tick(self) -> None:
        """Applies received actions, and resolves again if an agent has been silent for too long, or a policy was given up."""
        if self._clock.now_s() >= self._stale_s:
            self.apply()
        self.settle()

    def apply(self) -> None:
        """Resolves all settings again and applies the differences."""
        self._changed = set()
        after = self._resolve(self._fleet.ceilings)
        self._stale_s = self._next_stale_s()
        if _queueing(after) == _queueing(self.directives):
            self._given_up = None
        if after != self.directives:
            self._activate(after, after.instances)

    def _activate(self, after: Directives, names: Collection[str]) -> None:
        """Applies the differences. `names`: the only instances that may differ."""
        before, self.directives = self.directives, after
        now_s = self._clock.now_s()
        try:
            if apply_directives(self._scheduler, before, after, names=names, now_s=now_s, on_controls=self._fleet.set_controls):
                self._given_up = None
        except SchedulingError as error:
            log.exception("a change of policy was given up")
            if self._given_up != _queueing(after):
                self._given_up = _queueing(after)
                self._observer.note("policy.refused", after.policy.value, reason=str(error), severity="warning", source=after.policy.source)
            # All else is applied. The policy is tried again soon, and when anything changes.
            self._stale_s = min(self._stale_s, now_s + AGAIN_S)
            after = self.directives = replace(after, policy=before.policy, parameters=before.parameters)
        found = list(changes(before, after, names))
        for name in (before.draining ^ after.draining).intersection(after.instances):
            self._fleet.instances[name].draining = name in after.draining
        self._observer.control_changed(before, after, now_s)
        for change in found:
            self._note(change, now_s)

    def _resolve(self, ceilings: Mapping[str, Ceiling], before: Directives | None = None) -> Directives:
        agents = self._config.agents
        return resolve(
            self._configured,
            ceilings,
            self.meta if agents.enabled else None,
            self.statera if agents.enabled else {},
            self.notice,
            now_s=self._clock.now_s(),
            stale_after_s=agents.stale_after_s,
            aside=self._aside,
            before=before,
        )

    def _next_stale_s(self) -> float:
        """When the next message that is still used becomes stale."""
        now_s, stale_after_s = self._clock.now_s(), self._config.agents.stale_after_s
        ends = [message.said_s + stale_after_s for message in (self.meta, *self.statera.values()) if message is not None]
        return min((end for end in ends if end >= now_s), default=float("inf"))

    def _sent_s(self, sent_s: float) -> float:
        now_s = self._clock.now_s()
        return now_s if sent_s > now_s + MAX_SKEW_S else min(sent_s, now_s)

    def _is_old(self, sent_s: float, held: Received[MetaDecision] | Received[ControlAction] | None) -> bool:
        """Whether a message was sent before the one held: after a failover of the bus its stream may be read again from the start.

        The one held counts as sent by its receipt at the latest, so an agent whose clock was ahead is not kept from correcting itself.
        """
        return held is not None and self._sent_s(sent_s) < held.said_s

    def _note(self, change: Change, now_s: float) -> None:
        if change.kind == "policy":
            self.since.policy_s, self.since.policy_reason = now_s, change.reason
        elif change.kind == "policy.source":
            self.since.policy_reason = change.reason
        elif change.kind.startswith("knobs."):
            self.since.knobs_s[change.subject, change.kind.removeprefix("knobs.")] = now_s
        self._observer.note(
            change.kind,
            change.subject,
            before=change.before,
            after=change.after,
            reason=change.reason,
            severity="warning" if change.source == "fallback" else "info",
            decision_id=change.decision_id,
            source=change.source,
        )

    def _reject(self, agent: str, subject: str, reason: str) -> None:
        self._observer.agent_rejected(agent, reason)
        self._observer.note("agent.rejected", f"{agent} {subject}".strip(), reason=reason, severity="warning")


def _queueing(directives: Directives) -> tuple[str, Mapping[str, float]]:
    return directives.policy.value, directives.parameters


def _configured(config: Config) -> Configured:
    return Configured(
        policy=config.scheduler.policy,
        parameters=config.scheduler.parameters,
        n_run=config.scheduler.n_run,
        weights={name: tenant.weight for name, tenant in config.tenants.items()},
        limits=tenant_limits(config),
        tpot_guard=config.scheduler.tpot_guard,
        routers=routers(config),
    )


def tenant_limits(config: Config) -> dict[str, TenantLimits]:
    """Limits of the configured tenants; each limit has the same name on both sides."""
    return {
        name: TenantLimits(**{limit: getattr(tenant, limit) for limit in TenantLimits.__struct_fields__})
        for name, tenant in config.tenants.items()
    }


def override_faults(override: Override, instances: Mapping[str, object], limits: Mapping[str, TenantLimits]) -> list[str]:
    """The parts of an override that a gateway with these instances and configured limits cannot apply, each with its JSON path."""
    known = ", ".join(instances) or "none"
    faults = [f"$.knobs.{name}: no such instance; allowed: *, {known}" for name in override.knobs if name != "*" and name not in instances]
    for tenant, part in override.tenant_limits.items():
        held = limits_for(tenant, limits, override.tenant_limits)
        if part.get("burst_tokens") and not held.tokens_per_minute:
            faults.append(
                f"$.tenants.{tenant}.burst_tokens: got {held.burst_tokens} where the tenant has no tokens_per_minute; "
                "allowed: 0, or a quota beside it"
            )
    faults += [f"$.engines.{name}: no such instance; allowed: {known}" for name in override.draining if name not in instances]
    return faults
