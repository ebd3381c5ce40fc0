"""What of a new configuration a running gateway takes, and what it needs a restart for. Pure."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from hmas.controller.config.schema import Config

LIVE = ("tenants", "logging", "scheduler.policy", "scheduler.n_run", "scheduler.tpot_guard", "agents.stale_after_s")
"""Settings, or whole sections, that are taken while it serves."""


class Difference(NamedTuple):
    """One setting that is another than before: its path, and whether it is taken while the gateway serves."""

    setting: str
    live: bool


def differences(before: Config, after: Config) -> list[Difference]:
    """Every setting that is different, a tenant or an engine as a whole, in the order of the configuration."""
    return [Difference(setting, live=setting.startswith(LIVE)) for setting in _paths(to_builtins(before), to_builtins(after))]


def taken(before: Config, after: Config) -> Config:
    """`before` with all that is taken live from `after`."""
    scheduler, agents = after.scheduler, after.agents
    return replace(
        before,
        tenants=after.tenants,
        logging=after.logging,
        scheduler=replace(before.scheduler, policy=scheduler.policy, n_run=scheduler.n_run, tpot_guard=scheduler.tpot_guard),
        agents=replace(before.agents, stale_after_s=agents.stale_after_s),
    )


def _paths(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for section, now in after.items():
        then = before[section]
        if isinstance(now, dict):
            yield from (f"{section}.{name}" for name in {**then, **now} if then.get(name) != now.get(name))
        elif then != now:
            yield section
