"""Loads policies of plugins at the start of every process; installed distributions declare them by entry points."""

import functools
import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

import msgspec

from hmas.controller.core.errors import PolicyError
from hmas.controller.scheduling.policies.registry import register

GROUP = "hmas.policies"
log = logging.getLogger(__name__)


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point of the group.

    Attributes:
        entry_point: Its name and value, as the distribution declares them.
        distribution: Name and version of the distribution; empty if unknown.
        policy: Name of the policy that it added; empty if it was refused.
        refused: Why it was not added; empty if it was.
    """

    entry_point: str
    distribution: str
    policy: str = ""
    refused: str = ""


@functools.cache
def load_policies() -> tuple[Plugin, ...]:
    """Adds every policy of the entry-point group `hmas.policies` to the pool, once per process.

    A policy that cannot be added is skipped with a warning and never stops a service; a request for it by name fails as unknown.
    """
    return load_from(entry_points(group=GROUP))


def load_from(points: Iterable[EntryPoint]) -> tuple[Plugin, ...]:
    """As `load_policies`, for these entry points, in the order of their names."""
    loaded = tuple(_load(point) for point in sorted(points, key=lambda point: (point.name, point.value)))
    for plugin in loaded:
        if plugin.refused:
            log.warning("policy plugin %s of %s is skipped: %s", plugin.entry_point, plugin.distribution or "?", plugin.refused)
    return loaded


def _load(point: EntryPoint) -> Plugin:
    label = f"{point.name} = {point.value}"
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
    try:
        policy = point.load()
    except Exception as error:  # noqa: BLE001  code of a plugin: any error of its import is reported, and the service goes on
        return Plugin(entry_point=label, distribution=distribution, refused=f"its import failed: {type(error).__name__}: {error}")
    try:
        register(policy)
    except PolicyError as error:
        return Plugin(entry_point=label, distribution=distribution, refused=str(error))
    if policy.name != point.name:
        log.warning("policy plugin %s of %s adds the policy %r: that is the name to use", label, distribution or "?", policy.name)
    return Plugin(entry_point=label, distribution=distribution, policy=policy.name)
