"""The differences between two sets of active settings, for the event log. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from hmas.controller.control.overrides import held_because
from hmas.controller.control.resolve import KNOBS, META, Directives, InstanceDirective, Setting, Source
from hmas.controller.scheduling.admission.quotas import NO_LIMITS, TenantLimits

_BOUNDS: dict[Source, str] = {
    "statera": "they have proven right",
    "configured": "statera's are not used; the upper length of each estimate counts",
    "fallback": "statera is silent; the upper length of each estimate counts",
}
"""Why length bounds of this source apply."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two sets of settings, for the event log."""

    kind: str
    subject: str
    before: str
    after: str
    source: Source
    reason: str
    decision_id: str = ""


def changes(before: Directives, after: Directives, names: Iterable[str] | None = None) -> Iterable[Change]:
    """The differences, each with its source and reason. Length bounds change all the time and are listed only if their source changes.

    A change of the source alone, at the same value, has a kind of its own: `policy.source`, `knobs.source`.

    `names`: the only instances that may differ, None for any.
    """
    policy = after.policy
    why = _why(before.policy.source, policy)
    if (before.policy.value, before.parameters) != (policy.value, after.parameters):
        yield Change("policy", "policy", _policy_text(before), _policy_text(after), policy.source, why, policy.decision_id)
    elif before.policy.source != policy.source:
        yield Change("policy.source", policy.value, before.policy.source, policy.source, policy.source, why, policy.decision_id)
    for name in after.instances if names is None else names:
        yield from _knob_changes(name, before.instances.get(name), after.instances[name])
    if before.bounds_source != after.bounds_source:
        yield Change("length_bounds", "fence", before.bounds_source, after.bounds_source, after.bounds_source, _BOUNDS[after.bounds_source])
    for tenant in sorted({*before.weights, *after.weights}):
        was, now_weight = before.weights.get(tenant, 1.0), after.weights.get(tenant, 1.0)
        if was != now_weight:
            yield Change("tenant.weight", tenant, f"{was:g}", f"{now_weight:g}", *_cause(before, after, f"tenants.{tenant}.weight"))
    for tenant in sorted({*before.limits, *after.limits}):
        had, has = before.limits.get(tenant, NO_LIMITS), after.limits.get(tenant, NO_LIMITS)
        for limit in TenantLimits.__struct_fields__:
            if (was_at := getattr(had, limit)) != (now_at := getattr(has, limit)):
                cause = _cause(before, after, f"tenants.{tenant}.{limit}")
                yield Change(f"tenant.{limit}", tenant, _limit_text(was_at), _limit_text(now_at), *cause)
    yield from _router_changes(before, after)
    for name in sorted(before.draining ^ after.draining):
        draining = name in after.draining
        cause = _cause(before, after, f"engines.{name}.drain")
        yield Change("engine.drain", name, str(not draining).lower(), str(draining).lower(), *cause)


def _cause(before: Directives, after: Directives, setting: str) -> tuple[Source, str]:
    """What changed a setting that operators may force: one that forces it now, the release of one that did, or the configuration."""
    if because := held_because(after.override, setting):
        return "operator", because
    return ("operator", "released") if held_because(before.override, setting) else ("configured", "the configuration was read again")


def _router_changes(before: Directives, after: Directives) -> Iterable[Change]:
    """The changes of routers. A repeated decision of meta has another reason and id, which alone are no change."""
    for model in sorted({*before.routers, *after.routers}):
        old, new = before.routers.get(model), after.routers.get(model)
        was, now = (setting.value if setting else "as other models" for setting in (old, new))
        if was == now and (old and old.source) == (new and new.source):
            continue
        source, because = _cause(before, after, f"routers.{model}")
        kind = "router" if was != now else "router.source"
        left = new is not None and new.source == "configured" and old is not None and old.source in (META, "fallback")
        why = (new.reason if new else "") or ("meta leaves the router as configured" if left else because)
        yield Change(kind, model, was, now, new.source if new else source, why, new.decision_id if new else "")


def _limit_text(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _knob_changes(name: str, old: InstanceDirective | None, new: InstanceDirective) -> Iterable[Change]:
    """The changes of one instance's knobs. Where only the source differs there is one for all knobs, because no value has changed."""
    sources: dict[tuple[Source, Source], Setting] = {}
    for knob in KNOBS:
        now: Setting = getattr(new, knob)
        then: Setting | None = getattr(old, knob) if old else None
        if then is None or then.value != now.value:
            why = _why(then.source if then else "", now)
            yield Change(f"knobs.{knob}", name, _setting_text(then), _setting_text(now), now.source, why, now.decision_id)
        elif then.source != now.source:
            sources.setdefault((then.source, now.source), now)
    for (was, source), now in sources.items():
        yield Change("knobs.source", name, was, source, source, _why(was, now), now.decision_id)


def _why(was: str, now: Setting) -> str:
    """The reason of a change from source `was`. At the end of an operator's hold an agent's own is still that it follows the operator."""
    return "an operator's hold has ended" if was == "operator" != now.source else now.reason


def _policy_text(directives: Directives) -> str:
    parameters = ", ".join(f"{name}={value:g}" for name, value in sorted(directives.parameters.items()))
    return f"{directives.policy.value} ({directives.policy.source}{', ' + parameters if parameters else ''})"


def _setting_text(setting: Setting | None) -> str:
    return f"{setting.value} ({setting.source})" if setting else ""
