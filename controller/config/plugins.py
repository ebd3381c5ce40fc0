"""Loads what installed distributions add to H-MAS: they declare it as entry points, one group for each extension point."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hmas.controller.core.errors import ConfigError, HmasError
from hmas.controller.routing.registry import ROUTERS, SCORERS, add_router, add_scorer
from hmas.controller.scheduling.policies.registry import POLICIES, register
from hmas.engines.registry import ADAPTERS, add_adapter

SELECTOR_GROUP, BUDGET_LAW_GROUP = "hmas.selectors", "hmas.budget_laws"
"""Groups whose members are loaded only in their agent's process; the configuration checks no more than their names."""
LAB: Mapping[str, tuple[str, ...]] = MappingProxyType({SELECTOR_GROUP: ("bandit", "change-point", "classifier")})
"""Names that the distribution h-mas-lab declares, by group: an error about a name says what to install."""
Member = TypeVar("Member")
log = logging.getLogger(__name__)


class Plugin(Struct, frozen=True, kw_only=True):
    """One entry point.

    Attributes:
        name: The one to use in the configuration.
        value: The object that it names, as `MODULE:ATTRIBUTE`.
        distribution: Name and version of the distribution; empty if unknown.
        refused: Why it was not added; empty if it was.
    """

    group: str
    name: str
    value: str
    distribution: str = ""
    refused: str = ""

    def __str__(self) -> str:
        """The plugin as text: entry point, group and distribution."""
        return f"{self.name} = {self.value} ({self.group}) of {self.distribution or 'an unknown distribution'}"


_refused: dict[tuple[str, str], Plugin] = {}


class ExtensionPoint(Generic[Member]):
    """A registry that plugins can add to.

    Args:
        group: The entry-point group.
        noun: What a member is, for messages.
        members: The registry: members by name.
        add: Checks an object and adds it to `members` under a name; raises `HmasError` for an object that cannot be a member.
    """

    def __init__(self, group: str, noun: str, members: Mapping[str, Member], add: Callable[[str, Any], None]) -> None:
        self.group = group
        self.noun = noun
        self._members = members
        self._add = add
        self._loaded: tuple[Plugin, ...] | None = None

    def load(self) -> tuple[Plugin, ...]:
        """Adds every plugin of the group, once per process.

        A plugin that cannot be added is skipped with a warning and never stops a service; a request for it by name fails.
        """
        if self._loaded is None:
            self._loaded = self.load_from(entry_points(group=self.group))
        return self._loaded

    def load_from(self, points: Iterable[EntryPoint]) -> tuple[Plugin, ...]:
        """As `load`, for these entry points, in the order of their names."""
        loaded = tuple(self._load(point) for point in sorted(points, key=lambda point: (point.name, point.value)))
        for plugin in loaded:
            if plugin.refused:
                _refused[self.group, plugin.name] = plugin
                log.warning("plugin %s is skipped: %s", plugin, plugin.refused)
        return loaded

    def find(self, name: str, setting: str) -> Member:
        """The member of this name; plugins are loaded only if no built-in one has it.

        Raises:
            ConfigError: There is none. The message names `setting`, why a plugin was refused, and what is allowed.
        """
        if name not in self._members:
            self.load()
        if name not in self._members:
            raise ConfigError(f"{setting} is {name!r}; {unknown(name, self.group, self._members)}")
        return self._members[name]

    def _load(self, point: EntryPoint) -> Plugin:
        distribution = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
        plugin = Plugin(group=self.group, name=point.name, value=point.value, distribution=distribution)
        try:
            found = point.load()
        except Exception as error:  # noqa: BLE001  code of a plugin: any error of its import is reported, and the service goes on
            return replace(plugin, refused=f"its import failed: {type(error).__name__}: {error}")
        own, taken = getattr(found, "name", ""), self._members.get(point.name, found)
        if isinstance(own, str) and own not in {"", point.name}:
            return replace(plugin, refused=f"the {self.noun} has the name {own!r}; allowed: {point.name!r}, as its entry point")
        if taken is not found:
            return replace(plugin, refused=f"the name {point.name!r} is taken by {_origin(taken)}")
        try:
            self._add(point.name, found)
        except HmasError as error:
            return replace(plugin, refused=str(error))
        except Exception as error:  # noqa: BLE001  likewise: the check calls the plugin
            return replace(plugin, refused=f"the check of the {self.noun} failed: {type(error).__name__}: {error}")
        return plugin


def _origin(member: object) -> str:
    kind = member if hasattr(member, "__qualname__") else type(member)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', '')}"


@functools.cache
def declared(group: str) -> tuple[str, ...]:
    """The names that installed distributions declare in a group, in alphabetical order. Nothing is imported."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def unknown(name: str, group: str, names: Iterable[str]) -> str:
    """Says of a name that is not among `names` why its plugin was refused, what is allowed, and what h-mas-lab would add."""
    plugin = _refused.get((group, name))
    refused = f"the plugin {plugin} is refused: {plugin.refused}; " if plugin is not None else ""
    known = tuple(names)
    missing = [one for one in LAB.get(group, ()) if one not in known]
    lab = f"; h-mas-lab adds {', '.join(missing)}: `pip install ./lab`" if missing else ""
    return f"{refused}allowed: one of {', '.join(known)}{lab}"


POLICY_PLUGINS = ExtensionPoint("hmas.policies", "policy", POLICIES, lambda _name, policy: register(policy))
ROUTER_PLUGINS = ExtensionPoint("hmas.routers", "router", ROUTERS, add_router)
SCORER_PLUGINS = ExtensionPoint("hmas.scorers", "scorer", SCORERS, add_scorer)
ENGINE_PLUGINS = ExtensionPoint("hmas.engines", "engine adapter", ADAPTERS, add_adapter)


def load_plugins() -> tuple[Plugin, ...]:
    """Loads the policies, routers, scorers and engine adapters of plugins: what gateway, simulation and configuration may use."""
    return (*POLICY_PLUGINS.load(), *ROUTER_PLUGINS.load(), *SCORER_PLUGINS.load(), *ENGINE_PLUGINS.load())
