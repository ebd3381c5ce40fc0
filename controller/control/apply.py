"""Applies the active settings to a scheduler: the same lines for the gateway and for a simulation. Pure."""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from hmas.controller.control.resolve import META, Directives
from hmas.controller.core.errors import SchedulingError
from hmas.controller.core.messages import SystemSnapshot
from hmas.controller.core.types import Controls
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.quotas import NO_LIMITS
from hmas.controller.scheduling.scheduler import Scheduler


def apply_directives(
    scheduler: Scheduler,
    before: Directives,
    after: Directives,
    *,
    names: Collection[str],
    now_s: float,
    on_controls: Callable[[str, Controls], None],
) -> bool:
    """Applies what differs between two sets of settings; only the instances in `names` may. Returns whether policy or parameters changed.

    `on_controls` is called with each instance whose controls differ, once the scheduler has them, for the engine's own knobs.

    Raises:
        SchedulingError: The change of policy was given up and the old policy stays, in or out of the bypass; all else is applied.
    """
    changed, given_up = False, None
    if after.policy.value != before.policy.value or after.parameters != before.parameters:
        try:
            changed = scheduler.set_policy(after.policy.value, now_s, after.parameters)
        except SchedulingError as error:
            given_up = error
    for name in names:
        controls, old = after.instances[name].controls, before.instances.get(name)
        if old is None or controls != old.controls:
            scheduler.set_controls(name, controls)
            on_controls(name, controls)
    scheduler.set_bypass(active=(after if given_up is None else before).policy.source == "bypass")
    if after.bounds != before.bounds:
        scheduler.set_length_bounds(after.bounds)
    tenants = {*before.weights, *after.weights}
    scheduler.set_weights(
        {one: after.weights.get(one, 1.0) for one in tenants if before.weights.get(one, 1.0) != after.weights.get(one, 1.0)}
    )
    for tenant in {*before.limits, *after.limits}:
        limits = after.limits.get(tenant, NO_LIMITS)
        if before.limits.get(tenant, NO_LIMITS) != limits:
            scheduler.set_limits(tenant, limits, now_s)
    _apply_routers(scheduler, before, after)
    for name in (before.draining ^ after.draining).intersection(after.instances):
        scheduler.set_draining(name, name in after.draining)
    if given_up is not None:
        raise given_up
    return changed


def with_settings(snapshot: SystemSnapshot, directives: Directives) -> SystemSnapshot:
    """A scheduler's snapshot with what agents must know of the settings that are active beside it."""
    return replace(
        snapshot,
        forced=list(directives.forced),
        windows_without_meta={name: one.without_meta for name, one in directives.instances.items() if one.n_run.source == META},
        meta_aside=directives.meta_aside,
    )


def _apply_routers(scheduler: Scheduler, before: Directives, after: Directives) -> None:
    for model in {*before.routers, *after.routers}:
        was, now = before.routers.get(model), after.routers.get(model)
        if now is None or was is None or now.value != was.value:
            scheduler.set_router(model, None if now is None else make_router(now.value))
