"""Which settings of a new configuration a running gateway applies, and which need a restart. Pure."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from hmas.controller.config.schema import Config

LIVE = (
    "tenants",
    "logging",
    "models",
    "scheduler.policy",
    "scheduler.parameters",
    "scheduler.routing",
    "scheduler.n_run",
    "scheduler.tpot_guard",
    "agents.stale_after_s",
)
"""Settings, or whole sections, that are applied while the gateway serves."""


class Difference(NamedTuple):
    """One changed setting: its path, and whether it is applied while the gateway serves."""

    setting: str
    live: bool


def differences(before: Config, after: Config) -> list[Difference]:
    """Every changed setting, in the order of the configuration; a tenant or an engine counts as one setting."""
    return [Difference(setting, live=setting.startswith(LIVE)) for setting in _paths(to_builtins(before), to_builtins(after))]


def taken(before: Config, after: Config) -> Config:
    """`before` with all live settings from `after`."""
    scheduler, agents = after.scheduler, after.agents
    return replace(
        before,
        tenants=after.tenants,
        logging=after.logging,
        models=after.models,
        scheduler=replace(
            before.scheduler,
            policy=scheduler.policy,
            parameters=scheduler.parameters,
            n_run=scheduler.n_run,
            tpot_guard=scheduler.tpot_guard,
            routing=scheduler.routing,
            routing_weights=scheduler.routing_weights,
        ),
        agents=replace(before.agents, stale_after_s=agents.stale_after_s),
    )


def _paths(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for section, now in after.items():
        then = before[section]
        if isinstance(now, dict):
            yield from (f"{section}.{name}" for name in {**then, **now} if then.get(name) != now.get(name))
        elif then != now:
            yield section
