"""Decides which policy and limits apply now, and records which source set each one. Pure.

For every setting the order is: configured default < an agent's recent message < an operator's override. When an agent has been silent for
longer than `stale_after_s`, its settings fall back to the configured ones and carry the source `fallback`.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Literal, TypeVar

import msgspec

from hmas.controller.control.agent_scores import BOUNDS, WINDOWS
from hmas.controller.control.overrides import held_because, knobs_for
from hmas.controller.core.messages import ControlAction, LengthBound, MetaDecision, OverrideNotice, label_of
from hmas.controller.core.types import Controls
from hmas.controller.scheduling.admission.quotas import NO_LIMITS, TenantLimits
from hmas.controller.scheduling.policies.registry import BYPASS_POLICY, GUARD

META: Final = "meta"
STATERA: Final = "statera"
Source = Literal["configured", "meta", "statera", "bypass", "operator", "fallback"]
ENGINES_OWN = "engine's own"
BUDGET_LEAST = 0.125
"""Share of an engine's own token budget below which no agent may set it."""
GUARD_LEAST = 0.2
"""Smallest factor on the TPOT guard that an agent may set; if meta sets the share, the smallest fraction of the configured one."""
NO_OVERRIDE = OverrideNotice(sent_s=0.0)
KNOBS = ("n_run", "token_budget", "guard")
AGENTS_KNOBS = {"n_run": "knobs", "token_budget": "budget"}
"""The knobs that operators and agents may both set, and the name of an override of each."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One active value.

    Attributes:
        source: The source that set it.
        reason: The reason, as text.
        decision_id: The agent's decision that set it, empty if there is none.
    """

    value: str
    source: Source
    reason: str = ""
    decision_id: str = ""


@dataclass(frozen=True, slots=True)
class Configured:
    """The configured values. `n_run` 0 means the instance's ceiling.

    Attributes:
        parameters: Those of the policy, as long as meta has set none; empty for its defaults.
        routers: Router by model, `*` for all others, as `make_router` reads them.
    """

    policy: str
    n_run: int
    parameters: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, TenantLimits] = field(default_factory=dict)
    tpot_guard: float = 0.0
    routers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that an instance can take; `token_budget` is 0 if it does not report it."""

    n_run: int
    token_budget: int = 0


AgentMessage = TypeVar("AgentMessage", ControlAction, MetaDecision)


@dataclass(frozen=True, slots=True)
class Received(Generic[AgentMessage]):
    """The last message of an agent and when it was sent, seconds since the epoch."""

    said_s: float
    word: AgentMessage

    def fresh(self, now_s: float, stale_after_s: float) -> bool:
        """Whether the message is recent enough to count."""
        return now_s - self.said_s <= stale_after_s


@dataclass(frozen=True, slots=True)
class InstanceDirective:
    """Controls of one instance, and the source of each. `without_meta`: the window that it would have without meta's."""

    controls: Controls
    without_meta: int
    n_run: Setting
    token_budget: Setting
    guard: Setting


@dataclass(frozen=True, slots=True)
class Directives:
    """All settings that are active at one moment.

    Attributes:
        policy, parameters: The queueing policy and its parameters.
        instances: Controls by instance.
        bounds: Length bounds per prompt bucket; empty if statera is silent, so that the estimates' own upper lengths count.
        weights: Weight by tenant, if it is not 1.
        limits: Quotas, share and cap by tenant, for tenants with a configuration or an override.
        draining: Instances that get no new requests.
        forced: The settings that operators force, so that agents do not try to change them: `policy`, `knobs` (windows) and `budget` of all
            instances, `knobs:INSTANCE` and `budget:INSTANCE` of one, `tenants`, `engines`, `routers`.
        override: The overrides of operators, which tell who forces which setting, and why.
        routers: Router by model, `*` for all that are not named.
        meta_aside: Whether meta's windows, and its share of the TPOT guard, are set aside.
    """

    policy: Setting
    parameters: Mapping[str, float]
    instances: Mapping[str, InstanceDirective]
    bounds: tuple[LengthBound, ...]
    bounds_source: Source
    weights: Mapping[str, float]
    limits: Mapping[str, TenantLimits]
    draining: frozenset[str]
    forced: tuple[str, ...]
    override: OverrideNotice = NO_OVERRIDE
    routers: Mapping[str, Setting] = field(default_factory=dict)
    meta_aside: bool = False


def resolve(
    configured: Configured,
    ceilings: Mapping[str, Ceiling],
    meta: Received[MetaDecision] | None,
    statera: Mapping[str, Received[ControlAction]],
    override: OverrideNotice,
    *,
    now_s: float,
    stale_after_s: float,
    aside: Collection[tuple[str, str]] = (),
    before: Directives | None = None,
) -> Directives:
    """The settings that are active now.

    Args:
        configured: The configuration's own values.
        ceilings: Every instance and its ceiling; directives for others are ignored.
        meta: Meta's last message, None if there was none.
        statera: Statera's last message about each instance.
        override: The merged overrides of operators; an empty notice forces nothing.
        now_s: The time, to measure how long an agent has been silent.
        stale_after_s: Silence after which an agent's message no longer counts.
        aside: The answers of agents that do not count for now: `WINDOWS`, which includes the agent's token budget and TPOT guard, or
            `BOUNDS`, both of `hmas.controller.control.agent_scores`.
        before: The settings that were active before, if since then nothing has changed or become stale but the ceilings of the instances in
            `ceilings` and statera's messages about them: all else is taken from these settings.
    """
    decision, unheard = _followed(configured, meta, now_s, stale_after_s)
    meta_aside = (META, WINDOWS) in aside
    instances = {}
    for name, ceiling in ceilings.items():
        heard = statera.get(name)
        fresh = heard if heard is not None and heard.fresh(now_s, stale_after_s) else None
        is_aside = (STATERA, WINDOWS) in aside
        base = _base_controls(configured, ceiling, fresh, silent=heard is not None, stale_after_s=stale_after_s, aside=is_aside)
        instances[name] = _instance(base, ceiling, decision, override, name, aside=meta_aside)
    bounds, bounds_source = _bounds(statera, now_s, stale_after_s, aside)
    if before is not None:
        return replace(before, instances={**before.instances, **instances}, bounds=bounds, bounds_source=bounds_source)
    policy, parameters = _policy(configured, decision, unheard, override, drops_guard=meta_aside)
    return Directives(
        policy=policy,
        parameters=parameters,
        instances=instances,
        bounds=bounds,
        bounds_source=bounds_source,
        weights={**configured.weights, **override.tenant_weights},
        limits={
            tenant: limits_for(tenant, configured.limits, override.tenant_limits)
            for tenant in (*configured.limits, *override.tenant_limits)
        },
        draining=frozenset(name for name in override.draining if name in ceilings),
        forced=_forced(override),
        override=override,
        routers=_routers(configured, meta, unheard, override),
        meta_aside=meta_aside,
    )


def _bounds(
    statera: Mapping[str, Received[ControlAction]], now_s: float, stale_after_s: float, aside: Collection[tuple[str, str]]
) -> tuple[tuple[LengthBound, ...], Source]:
    """The length bounds that apply, and their source: `fallback` only if statera is silent, not if it has no bounds that are used yet."""
    bounds = () if (STATERA, BOUNDS) in aside else newest_bounds(statera, now_s, stale_after_s)
    if bounds:
        return bounds, "statera"
    silent = bool(statera) and not any(heard.fresh(now_s, stale_after_s) for heard in statera.values())
    return (), "fallback" if silent else "configured"


def newest_bounds(statera: Mapping[str, Received[ControlAction]], now_s: float, stale_after_s: float) -> tuple[LengthBound, ...]:
    """The newest length bounds among recent messages, set aside or not; empty if there are none."""
    newest: Received[ControlAction] | None = None
    for heard in statera.values():
        if (newest is None or heard.said_s > newest.said_s) and heard.word.length_bounds and heard.fresh(now_s, stale_after_s):
            newest = heard
    return () if newest is None else tuple(newest.word.length_bounds)


def limits_for(tenant: str, configured: Mapping[str, TenantLimits], held: Mapping[str, Mapping[str, int | float]]) -> TenantLimits:
    """A tenant's limits: the configured ones, replaced by those that operators force."""
    return msgspec.convert(msgspec.to_builtins(configured.get(tenant, NO_LIMITS)) | {**held.get(tenant, {})}, TenantLimits)


def _followed(
    configured: Configured, meta: Received[MetaDecision] | None, now_s: float, stale_after_s: float
) -> tuple[MetaDecision | None, str]:
    """Meta's decision, None if it does not count; and why the last one does not, empty if there was none or it counts.

    After a reload meta still goes by the policy that it was started with, and would undo the operator's change. Its bypass counts all the
    same.
    """
    if meta is None:
        return None, ""
    if not meta.fresh(now_s, stale_after_s):
        return None, f"no word from meta for more than {stale_after_s:g} s"
    known, own = meta.word.configured, label_of(configured.policy, configured.parameters, 0)
    if known not in ("", own) and not meta.word.bypass:
        return None, f"meta goes by {known}, which was configured when it started; SIGHUP to it starts it again"
    return meta.word, ""


def _policy(
    configured: Configured, decision: MetaDecision | None, unheard: str, override: OverrideNotice, *, drops_guard: bool
) -> tuple[Setting, dict[str, float]]:
    if override.policy:
        return Setting(override.policy, "operator", held_because(override, "policy")), dict(override.parameters)
    if decision is not None:
        if decision.bypass:
            return Setting(BYPASS_POLICY, "bypass", decision.reason, decision.decision_id), {}
        parameters = _parameters(decision, configured, dropped=drops_guard)
        return Setting(decision.policy, "meta", decision.reason, decision.decision_id), parameters
    return Setting(configured.policy, "fallback" if unheard else "configured", unheard), dict(configured.parameters)


def _parameters(decision: MetaDecision, configured: Configured, *, dropped: bool) -> dict[str, float]:
    """Meta's parameters. Its TPOT guard share is kept high enough not to hold nearly everything back; it is removed if `dropped`."""
    parameters = dict(decision.parameters)
    if GUARD in parameters:
        if dropped:
            del parameters[GUARD]
        elif parameters[GUARD] > 0.0:
            parameters[GUARD] = max(parameters[GUARD], GUARD_LEAST * configured.tpot_guard)
    return parameters


@dataclass(frozen=True, slots=True)
class _Base:
    """Controls of an instance before bypass and overrides are applied."""

    n_run: int
    token_budget: int
    source: Source
    reason: str = ""
    guard: float = 1.0
    budget_reason: str = ""
    guard_reason: str = ""


def _base_controls(
    configured: Configured, ceiling: Ceiling, heard: Received[ControlAction] | None, *, silent: bool, stale_after_s: float, aside: bool
) -> _Base:
    n_run = configured.n_run or ceiling.n_run
    if aside:
        because = "set aside: statera's window held requests back although the engine had room"
        return _Base(n_run, 0, "fallback", because, budget_reason=because, guard_reason=because)
    if heard is not None:
        budget = heard.word.token_budget
        if budget:
            # A budget too small for a prompt starves the engine at once, before anything could be measured.
            budget = max(budget, math.ceil(BUDGET_LEAST * ceiling.token_budget))
        word = heard.word
        guard = max(GUARD_LEAST, word.guard)
        return _Base(word.n_run, budget, "statera", word.reason, guard, word.budget_reason or word.reason, word.guard_reason or word.reason)
    if silent:
        silence = f"no word from statera for more than {stale_after_s:g} s"
        return _Base(n_run, 0, "fallback", silence, budget_reason=silence, guard_reason=silence)
    return _Base(n_run, 0, "configured")


def _instance(
    base: _Base, ceiling: Ceiling, decision: MetaDecision | None, override: OverrideNotice, name: str, *, aside: bool
) -> InstanceDirective:
    n_run, budget, guard = base.n_run, base.token_budget, base.guard
    run_origin: tuple[Source, str, str] = (base.source, base.reason, "")
    budget_origin: tuple[Source, str, str] = (base.source, base.budget_reason, "")
    guard_origin: tuple[Source, str, str] = (base.source, base.guard_reason, "")
    if override.policy:
        # Meta's window belongs to the policy that meta has chosen.
        decision = None
    if decision is not None and decision.bypass:
        n_run, budget, guard = ceiling.n_run, 0, 1.0
        run_origin = budget_origin = guard_origin = ("bypass", decision.reason, decision.decision_id)
    elif decision is not None and decision.n_run > 0 and not aside:
        n_run, run_origin = min(decision.n_run, ceiling.n_run), ("meta", decision.reason, decision.decision_id)
    forced = knobs_for(override, name)
    if forced.n_run is not None:
        n_run, run_origin = forced.n_run, ("operator", held_because(override, f"knobs.{name}.n_run", "knobs.*.n_run"), "")
    if forced.token_budget is not None:
        why = held_because(override, f"knobs.{name}.token_budget", "knobs.*.token_budget")
        budget, budget_origin = forced.token_budget, ("operator", why, "")
    n_run = min(max(1, n_run), ceiling.n_run)
    advised = run_origin[0] in ("statera", "meta")
    if ceiling.token_budget:
        budget = min(budget, ceiling.token_budget)
    return InstanceDirective(
        without_meta=min(max(1, base.n_run), ceiling.n_run),
        controls=Controls(n_run=n_run, token_budget=budget or None, guard=guard, advised=advised),
        n_run=Setting(str(n_run), *run_origin),
        token_budget=Setting(str(budget) if budget and budget != ceiling.token_budget else ENGINES_OWN, *budget_origin),
        guard=Setting(f"{guard:g}", *guard_origin),
    )


def _routers(configured: Configured, meta: Received[MetaDecision] | None, unheard: str, override: OverrideNotice) -> dict[str, Setting]:
    """The router of each model. Meta's replaces the configured one of all models (`*`), and a configured one of a single model stays.

    An operator's router for all models replaces both. `unheard`: why meta's last message does not count.
    """
    held = {} if "*" in override.routers else {model: Setting(text, "configured") for model, text in configured.routers.items()}
    if meta is not None and meta.word.router and not meta.word.bypass and "*" in held:
        word, own = meta.word, held["*"].value
        held["*"] = Setting(own, "fallback", unheard) if unheard else Setting(word.router, META, word.reason, word.decision_id)
        if override.policy:
            held["*"] = Setting(own, "configured", "an operator holds the policy, and meta's router is for meta's own")
    return held | {model: Setting(text, "operator", held_because(override, f"routers.{model}")) for model, text in override.routers.items()}


def _forced(override: OverrideNotice) -> tuple[str, ...]:
    tenants = {**override.tenant_weights, **override.tenant_limits}
    held = {
        "policy": override.policy,
        **dict.fromkeys(_steered(override), True),
        "tenants": tenants,
        "engines": override.draining,
        "routers": override.routers,
    }
    return tuple(name for name, value in held.items() if value)


def _steered(override: OverrideNotice) -> list[str]:
    """Names of the overrides of knobs that an agent sets, too: of all instances, or `NAME:INSTANCE` for one."""
    found: list[str] = []
    for knob, name in AGENTS_KNOBS.items():
        instances = {instance for instance, knobs in override.knobs.items() if knob in knobs}
        found += [name] if "*" in instances else [f"{name}:{instance}" for instance in sorted(instances)]
    return found
