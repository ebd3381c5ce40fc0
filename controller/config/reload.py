"""Which settings of a new configuration a running gateway applies, and which need a restart. Pure."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from hmas.controller.config.schema import Config, EngineConfig

LIVE = (
    "tenants",
    "logging",
    "models",
    "engines_file",
    "engines_dns",
    "scheduler.policy",
    "scheduler.parameters",
    "scheduler.routing",
    "scheduler.n_run",
    "scheduler.tpot_guard",
)
"""Settings, or whole sections, that are applied while the gateway serves. Engines join and leave, too: see `fleet_change`."""
OF_AGENTS = ("agents", "scheduler", "slo", "logging")
"""Sections with which an agent has to be started again."""
READ_AT_START = ("enabled", "only", "ask", "ask_sample_rps", "set_aside", "stale_after_s")
"""Settings in `agents` that the gateway and the supervisor go by, too; all others are those of agents alone, which start again."""


class Difference(NamedTuple):
    """One changed setting: its path, and whether it is applied while the gateway serves."""

    setting: str
    live: bool


class FleetChange(NamedTuple):
    """The engines that join and leave, and the names of those with other settings, which take a restart.

    An engine with KV events takes one too: their sockets are opened at the start.
    """

    joining: tuple[EngineConfig, ...]
    leaving: tuple[EngineConfig, ...]
    restart: tuple[str, ...]


def fleet_change(before: Config, after: Config) -> FleetChange:
    """What differs between the engines of two configurations."""
    then, now = ({engine.name: engine for engine in config.engines} for config in (before, after))
    new, gone = [now[name] for name in now if name not in then], [then[name] for name in then if name not in now]
    restart = [name for name in now if name in then and now[name] != then[name]]
    restart += [engine.name for engine in (*new, *gone) if engine.kv_events is not None]
    joining, leaving = (tuple(engine for engine in some if engine.kv_events is None) for some in (new, gone))
    return FleetChange(joining, leaving, tuple(restart))


def differences(before: Config, after: Config) -> list[Difference]:
    """Every changed setting, in the order of the configuration; a tenant or an engine counts as one setting."""
    found = [Difference(setting, live=_is_live(setting)) for setting in _paths(to_builtins(before), to_builtins(after))]
    fleet = fleet_change(before, after)
    found += [Difference(f"engines.{engine.name}", live=True) for engine in (*fleet.joining, *fleet.leaving)]
    return found + [Difference(f"engines.{name}", live=False) for name in fleet.restart]


def taken(before: Config, after: Config) -> Config:
    """`before` with all live settings from `after`."""
    fleet = fleet_change(before, after)
    sections = {name: getattr(after, name) for name in after.__struct_fields__ if name in LIVE}
    fields = (name for name in after.scheduler.__struct_fields__ if f"scheduler.{name}".startswith(LIVE))
    scheduling = {name: getattr(after.scheduler, name) for name in fields}
    agents = replace(after.agents, **{name: getattr(before.agents, name) for name in READ_AT_START})
    engines = [*(engine for engine in before.engines if engine not in fleet.leaving), *fleet.joining]
    return replace(before, engines=engines, scheduler=replace(before.scheduler, **scheduling), agents=agents, **sections)


def concerns_agents(before: Config, after: Config) -> bool:
    """Whether an agent has to be started again to go by the other configuration."""
    return any(getattr(before, section) != getattr(after, section) for section in OF_AGENTS)


def _is_live(setting: str) -> bool:
    section, _, name = setting.partition(".")
    return setting.startswith(LIVE) or (section == "agents" and name not in READ_AT_START)


def _paths(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for section, now in after.items():
        then = before[section]
        if isinstance(now, dict):
            yield from (f"{section}.{name}" for name in {**then, **now} if then.get(name) != now.get(name))
        elif then != now and section != "engines":
            yield section
