"""Applies resolved settings to a scheduler, the gateway's and a simulated one's alike. Pure."""

from collections.abc import Collection

from hmas.controller.control.resolve import Directives
from hmas.controller.scheduling.admission.quotas import NO_LIMITS
from hmas.controller.scheduling.scheduler import Scheduler


def switch_policy(scheduler: Scheduler, before: Directives, after: Directives, now_s: float) -> bool:
    """Switches the policy and its parameters if they differ; returns whether the scheduler has changed them.

    Raises:
        SchedulingError: The new policy has lost requests while it took them over; the old one stays active, with all of them.
    """
    if after.policy.value == before.policy.value and after.parameters == before.parameters:
        return False
    return scheduler.set_policy(after.policy.value, now_s, after.parameters)


def activate(scheduler: Scheduler, before: Directives, after: Directives, names: Collection[str], now_s: float) -> list[str]:
    """Applies all other differences: controls, length bounds, weights, limits and draining.

    Args:
        scheduler: The scheduler, on which `before` is active.
        before: The settings so far.
        after: The settings from now on.
        names: The only instances that may differ.
        now_s: The time.

    Returns:
        The instances whose controls have changed; their engines need them, too.
    """
    changed = [name for name in names if after.instances[name] != before.instances.get(name)]
    for name in changed:
        scheduler.set_controls(name, after.instances[name].controls)
    if after.bounds != before.bounds:
        scheduler.set_length_bounds(after.bounds)
    for tenant in {*before.weights, *after.weights}:
        if before.weights.get(tenant, 1.0) != after.weights.get(tenant, 1.0):
            scheduler.set_weight(tenant, after.weights.get(tenant, 1.0))
    for tenant in {*before.limits, *after.limits}:
        limits = after.limits.get(tenant, NO_LIMITS)
        if before.limits.get(tenant, NO_LIMITS) != limits:
            scheduler.set_limits(tenant, limits, now_s)
    for name in before.draining ^ after.draining:
        scheduler.set_draining(name, name in after.draining)
    return changed
