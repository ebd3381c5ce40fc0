"""Builds meta from the configuration: selector, twin, judge, journal. Live operation and simulation use the same code."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hmas.agents.meta.candidate import candidate
from hmas.agents.meta.guards import GuardSet
from hmas.agents.meta.journal import DecisionJournal
from hmas.agents.meta.judge import Judge
from hmas.agents.meta.limits import Limits
from hmas.agents.meta.model import MetaModel
from hmas.agents.meta.paper_guards import PAPER_GUARDS
from hmas.agents.meta.pending_work import Decisions
from hmas.agents.meta.selectors.base import ModelSelector, Selector
from hmas.agents.meta.selectors.llm import NO_DEFAULTS, LlmSelector
from hmas.agents.meta.selectors.llm_endpoint import configured_endpoint
from hmas.agents.meta.selectors.paper_rules import AS_PRINTED, PaperRuleSelector
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.agents.meta.selectors.twin import TwinSelector
from hmas.agents.meta.twin.fleet import FleetModel
from hmas.agents.meta.twin.twin import Twin, TwinSettings
from hmas.controller.config.cross_checks import LEAVE_ROUTER
from hmas.controller.config.derived import meta_routers, routers, scheduler_settings
from hmas.controller.config.plugins import SELECTOR_GROUP, ExtensionPoint
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ConfigError, HmasError, PolicyError
from hmas.controller.core.messages import LongView, ShortView
from hmas.controller.scheduling.policies.registry import POLICIES, named
from hmas.controller.scheduling.settings import SchedulerSettings
from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile, load_profile

Seconds = Callable[[], float]
PROFILES_KEPT = 64
"""Loaded profiles that are remembered."""


@dataclass(frozen=True, slots=True)
class SelectorSetup:
    """What a selector may be built from.

    Attributes:
        config: The whole configuration.
        twin: The digital twin; None if the configuration uses none.
        clock: Clock in seconds with any origin; None if time stands still while work is done.
    """

    config: Config
    twin: Twin | None
    clock: Seconds | None


def _twin_selector(setup: SelectorSetup) -> Selector:
    assert setup.twin is not None, "make_meta builds the twin for this selector"
    return TwinSelector(setup.twin, RuleSelector(), setup.clock)


def _language_model(setup: SelectorSetup) -> Selector:
    agents = setup.config.agents
    endpoint = configured_endpoint(agents, os.environ)
    printed = agents.meta_guards == "paper"
    return LlmSelector(
        endpoint.ask,
        PaperRuleSelector() if printed else RuleSelector(),
        model=agents.meta_llm_model,
        max_tokens=agents.meta_llm_max_tokens,
        defaults=AS_PRINTED if printed else NO_DEFAULTS,
    )


SELECTORS: dict[str, Callable[[SelectorSetup], Selector]] = {
    "twin": _twin_selector,
    "rules": lambda _setup: RuleSelector(),
    "llm": _language_model,
    "paper-rules": lambda _setup: PaperRuleSelector(),
}
"""What builds a selector, by its name in `agents.meta_selector`: the built-in ones, then those of plugins."""


def add_selector(name: str, make: Any) -> None:
    """Adds a plugin's selector: a class or function that takes a `SelectorSetup`.

    Raises:
        ConfigError: It cannot be called.
    """
    if not callable(make):
        raise ConfigError(f"{make!r} is no selector; allowed: a class or function that takes a hmas.agents.meta.make.SelectorSetup")
    SELECTORS[name] = make


SELECTOR_PLUGINS = ExtensionPoint(SELECTOR_GROUP, "selector", SELECTORS, add_selector)


@dataclass(slots=True)
class Meta:
    """A running meta: its model and the parts that feed it.

    Attributes:
        twin: The twin; the caller feeds it with telemetry and features. None if the configuration does not use it.
        trained: The selector if it has a trained model on which the agent reports; else None.
    """

    model: MetaModel
    twin: Twin | None
    trained: ModelSelector | None = None

    def on_view(self, view: ShortView | LongView, now_s: float) -> Decisions:
        """Returns the decisions that a view causes at once."""
        return self.model.on_short(view, now_s) if isinstance(view, ShortView) else self.model.on_long(view, now_s)

    def think(self, now_s: float) -> Decisions:
        """Does the model's pending work in place: for a simulation, where time stands still meanwhile."""
        said: Decisions = []
        while (asking := self.model.asking) is not None:
            try:
                result = asking.compute()
            except HmasError as error:
                said += asking.failed(str(error), now_s)
            else:
                said += asking.finish(result, now_s)
        return said


def make_meta(config: Config, *, admission: SchedulerSettings | None = None, routing: str = "", clock: Seconds | None = None) -> Meta:
    """Builds meta from the configuration.

    Args:
        config: The whole configuration: the twin simulates the gateway and the engines that it describes.
        admission: The gateway's admission settings, where they differ from the configuration. `routing`: likewise its routing.
        routing: See `admission`.
        clock: Clock in seconds with any origin, by which the twin measures what a replay costs; None if time stands still meanwhile.

    Raises:
        ConfigError: There is no such selector, or its own settings cannot be used.
        ModelError: The model of the selector cannot be loaded.
    """
    agents = config.agents
    limits = Limits(
        period_s=agents.meta_period_s,
        dwell_s=agents.meta_dwell_s,
        rollback_window_s=agents.meta_rollback_window_s,
        rollback_ratio=agents.meta_rollback_ratio,
        settle_s=agents.qos_short_window_s,
        keep_alive_s=min(5.0, agents.meta_period_s, agents.stale_after_s / 3),
        switches_per_hour=agents.meta_switches_per_hour,
        agree=agents.meta_agree,
    )
    routing = routing or routers(config)["*"]
    make_selector = SELECTOR_PLUGINS.find(agents.meta_selector, "agents.meta_selector")
    twin = _twin(config, admission, routing) if agents.meta_judge or agents.meta_selector == "twin" else None
    selector = make_selector(SelectorSetup(config, twin, clock))
    model = MetaModel(
        start=candidate(config.scheduler.policy, config.scheduler.parameters),
        pool=_whitelist(agents.meta_policies),
        routers=() if agents.meta_selector in LEAVE_ROUTER else _routers(agents, routing),
        limits=limits,
        guards=PAPER_GUARDS if agents.meta_guards == "paper" else GuardSet(),
        selector=selector,
        judge=Judge(twin, clock) if twin is not None and agents.meta_judge else None,
        journal=DecisionJournal(
            agents.qos_long_window_s, twin.evidence.hindsight if twin is not None else None, period_s=agents.meta_period_s
        ),
    )
    return Meta(model, twin, selector if isinstance(selector, ModelSelector) else None)


def _whitelist(policies: str) -> tuple[str, ...]:
    wanted = named(policies) or tuple(POLICIES)
    unknown = sorted(set(wanted) - set(POLICIES))
    if unknown:
        raise ConfigError(f"agents.meta_policies names {', '.join(unknown)}; allowed: {', '.join(POLICIES)}")
    return wanted


def _routers(agents: AgentsConfig, configured: str) -> tuple[str, ...]:
    try:
        return meta_routers(agents, configured)
    except PolicyError as error:
        raise ConfigError(f"agents.meta_routers: {error}") from error


def _twin(config: Config, admission: SchedulerSettings | None, routing: str) -> Twin:
    settings = TwinSettings(
        admission=admission or scheduler_settings(config),
        routing=routing,
        window_s=config.agents.meta_twin_window_s,
        budget_s=config.agents.meta_twin_budget_s,
    )
    return Twin(FleetModel(_profile_named), settings)


@lru_cache(maxsize=PROFILES_KEPT)
def _profile_named(name: str) -> Profile | None:
    # Only prediction can read a description from data sheets; without a profile the twin uses what the instance shows.
    with suppress(ProfileError):
        return load_profile(name) if name else None
    return None
