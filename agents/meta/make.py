"""Builds meta from the configuration: selector, twin, judge, journal. Live operation and simulation use the same code."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hmas.agents.meta.journal import DecisionJournal
from hmas.agents.meta.judge import Judge
from hmas.agents.meta.limits import Limits
from hmas.agents.meta.model import MetaModel
from hmas.agents.meta.pending_work import Decisions
from hmas.agents.meta.selectors.bandit import BanditSelector
from hmas.agents.meta.selectors.base import Selector
from hmas.agents.meta.selectors.change_point import ChangePointSelector
from hmas.agents.meta.selectors.classifier import KIND, SHIPPED, ClassifierSelector, load_classifier
from hmas.agents.meta.selectors.llm import LlmSelector
from hmas.agents.meta.selectors.llm_endpoint import ChatEndpoint
from hmas.agents.meta.selectors.rules import RuleSelector
from hmas.agents.meta.selectors.table import read_table
from hmas.agents.meta.selectors.twin import TwinSelector
from hmas.agents.meta.twin.fleet import FleetModel
from hmas.agents.meta.twin.twin import Twin, TwinSettings
from hmas.agents.model_store.store import SHIPPED as SHIPPED_NAME
from hmas.agents.model_store.store import ModelStore
from hmas.controller.config.derived import models_dir, scheduler_settings
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ConfigError, HmasError
from hmas.controller.core.messages import LongView, ShortView
from hmas.controller.scheduling.policies.registry import POLICIES, named
from hmas.controller.scheduling.settings import SchedulerSettings
from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile, load_profile

Seconds = Callable[[], float]


@dataclass(slots=True)
class Meta:
    """A running meta: its model and the parts that feed it.

    Attributes:
        twin: The twin; the caller feeds it with telemetry and features. None if the configuration does not use it.
        classifier: The selector if a trained model proposes, so that the agent can report on it; else None.
    """

    model: MetaModel
    twin: Twin | None
    classifier: ClassifierSelector | None = None

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
        ConfigError: The selector's own settings cannot be used.
        ModelError: The classifier cannot be loaded.
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
    )
    twin = _twin(config, admission, routing) if agents.meta_judge or agents.meta_selector == "twin" else None
    selector = _selector(config, twin, clock)
    model = MetaModel(
        start=config.scheduler.policy,
        pool=_whitelist(agents.meta_policies),
        limits=limits,
        selector=selector,
        judge=Judge(twin, clock) if twin is not None and agents.meta_judge else None,
        journal=DecisionJournal(
            agents.qos_long_window_s, twin.evidence.hindsight if twin is not None else None, period_s=agents.meta_period_s
        ),
    )
    return Meta(model, twin, selector if isinstance(selector, ClassifierSelector) else None)


def _whitelist(policies: str) -> tuple[str, ...]:
    wanted = named(policies) or tuple(POLICIES)
    unknown = sorted(set(wanted) - set(POLICIES))
    if unknown:
        raise ConfigError(f"agents.meta_policies names {', '.join(unknown)}; allowed: {', '.join(POLICIES)}")
    return wanted


def _selector(config: Config, twin: Twin | None, clock: Seconds | None) -> Selector:
    agents, rules = config.agents, RuleSelector()
    if agents.meta_selector == "twin" and twin is not None:
        return TwinSelector(twin, rules, clock)
    if agents.meta_selector == "llm":
        return _language_model(agents, rules)
    if agents.meta_selector == "classifier":
        folder = Path(agents.meta_model).expanduser() if agents.meta_model else ModelStore(models_dir(config)).current(KIND)
        return ClassifierSelector(load_classifier(folder or SHIPPED), folder.name if folder else SHIPPED_NAME)
    if agents.meta_selector == "bandit":
        return BanditSelector(config.scheduler.policy)
    if agents.meta_selector == "change-point":
        own = Path(agents.meta_table).expanduser() if agents.meta_table else None
        return ChangePointSelector(read_table(own) if own is not None else read_table(), trusted=own is not None)
    return rules


def _language_model(agents: AgentsConfig, instead: Selector) -> Selector:
    if not agents.meta_llm_url:
        raise ConfigError("agents.meta_llm_url is empty; allowed with meta_selector llm: the address of an OpenAI-compatible server")
    key = os.environ.get(agents.meta_llm_key_env, "") if agents.meta_llm_key_env else ""
    endpoint = ChatEndpoint(agents.meta_llm_url, key, timeout_s=agents.meta_llm_timeout_s)
    return LlmSelector(endpoint.ask, instead, model=agents.meta_llm_model, max_tokens=agents.meta_llm_max_tokens)


def _twin(config: Config, admission: SchedulerSettings | None, routing: str) -> Twin:
    scheduler = config.scheduler
    settings = TwinSettings(
        admission=admission or scheduler_settings(config),
        routing=routing or scheduler.routing,
        weights={name: tenant.weight for name, tenant in config.tenants.items()},
        window_s=config.agents.meta_twin_window_s,
        budget_s=config.agents.meta_twin_budget_s,
    )
    return Twin(FleetModel(_profiles(config)), settings)


def _profiles(config: Config) -> dict[str, Profile]:
    """Loads the profiles by instance, as far as the configuration names profiles with step times."""
    found = {}
    for engine in config.engines:
        # Only prediction can read a description from data sheets; without a profile the twin uses what the instance shows.
        with suppress(ProfileError):
            found[engine.name] = load_profile(engine.profile)
    return found
