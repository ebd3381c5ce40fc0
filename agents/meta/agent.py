"""Meta on the bus: views in, policy decisions out; telemetry and features for its twin, which replays beside the loop."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from agents.meta.fleet import FleetModel
from agents.meta.loop import MetaLoop, TwinSettings
from agents.meta.model import MetaModel
from agents.meta.replay import Outlook
from agents.meta.twin import Question
from agents.work import Deferred
from controller.bus.base import Bus
from controller.config.schema import Config
from controller.core.errors import HmasError
from controller.core.messages import (
    DECISIONS,
    FEATURES,
    TELEMETRY,
    VIEWS,
    LongView,
    Message,
    MetaDecision,
    ShortView,
    SystemSnapshot,
)
from controller.scheduling.outcomes import SchedulerSettings
from controller.scheduling.pool import POLICIES
from engines.errors import ProfileError
from engines.sim.profile import Profile, load_profile

DECISION_FRESH_S = 600.0
"""Age beyond which its own last decision is not resumed: the workload it was made for has passed."""
REPLAY = 5_000
"""Newest telemetry entries read at start, for the twin."""


class MetaAgent:
    """Binds `MetaLoop` to its streams; see `agents.shell.Agent`."""

    name = "meta"
    streams: tuple[str, ...] = (VIEWS,)
    tick_s = 0.0
    max_age_s: Mapping[type[Message], float] = MappingProxyType({ShortView: 3.0, LongView: 15.0, SystemSnapshot: 10.0})

    def __init__(self, loop: MetaLoop, *, asks: bool) -> None:
        self.loop = loop
        # Without a twin nobody needs the telemetry, which is most of what there is to read.
        self.follows: tuple[str, ...] = (TELEMETRY, FEATURES) if asks else ()

    @property
    def model(self) -> MetaModel:
        """What decides."""
        return self.loop.model

    async def recover(self, bus: Bus, now_s: float) -> None:
        """Resumes its own last decision, and fills the twin's window."""
        for message in await bus.latest(DECISIONS):
            if isinstance(message, MetaDecision) and now_s - message.sent_s <= DECISION_FRESH_S:
                self.model.restore(message, now_s)
        for stream in self.follows:
            for message in await bus.latest(stream, REPLAY):
                self.loop.hear(message)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Takes views and returns the decisions that are due. Without views it says nothing, and the gateway falls back."""
        decisions: list[Message] = []
        for message in messages:
            if isinstance(message, ShortView | LongView):
                decisions += self.loop.on_view(message, now_s)
            else:
                self.loop.hear(message)
        return decisions

    def on_tick(self, now_s: float) -> list[Message]:  # noqa: ARG002 - part of the protocol
        """Never called."""
        return []

    def beside(self, now_s: float) -> Deferred[Any] | None:
        """The twin's replay of what the model asks."""
        if self.model.asking is None:
            return None
        question = self.loop.question(now_s)
        if isinstance(question, str):
            return Deferred(lambda: None, lambda _none, at_s: list(self.model.on_silence(question, at_s)))
        return Deferred(partial(_answer, question), partial(self._answered, question))

    def _answered(self, question: Question, found: tuple[list[Outlook], float, str], now_s: float) -> list[Message]:
        outlooks, took_s, failure = found
        if failure:
            return list(self.model.on_silence(failure, now_s))
        return list(self.loop.answered(question, outlooks, took_s, now_s))


def _answer(question: Question) -> tuple[list[Outlook], float, str]:
    """Outlooks, seconds they took, and what went wrong where something did: a twin that breaks must not be asked the same for ever."""
    start_s = time.perf_counter()
    try:
        return question.answer(), time.perf_counter() - start_s, ""
    except HmasError as error:
        return [], 0.0, f"the replay broke: {error}"


def make_loop(config: Config) -> MetaLoop:
    """Meta's model with its twin, from the configuration: the twin simulates the gateway and the engines that it describes."""
    scheduler = config.scheduler
    settings = TwinSettings(
        # Every setting that both sides know goes by the same name on both.
        admission=SchedulerSettings(
            **{name: getattr(scheduler, name) for name in SchedulerSettings.__struct_fields__ if hasattr(scheduler, name)}
        ),
        routing=scheduler.routing,
        weights={name: tenant.weight for name, tenant in config.tenants.items()},
        window_s=config.agents.meta_twin_window_s,
        budget_s=config.agents.meta_twin_budget_s,
    )
    return MetaLoop(make_model(config), FleetModel(_profiles(config)), settings)


def make_model(config: Config) -> MetaModel:
    """What decides, from the configuration."""
    agents = config.agents
    return MetaModel(
        start=config.scheduler.policy,
        pool=POLICIES,
        period_s=agents.meta_period_s,
        dwell_s=agents.meta_dwell_s,
        rollback_window_s=agents.meta_rollback_window_s,
        rollback_ratio=agents.meta_rollback_ratio,
        settle_s=agents.qos_short_window_s,
        keep_alive_s=min(5.0, agents.meta_period_s, agents.stale_after_s / 3),
        selector=agents.meta_selector,
        judged=agents.meta_twin,
    )


def _profiles(config: Config) -> dict[str, Profile]:
    """Profiles by instance, as far as the configuration names any that tell how long a step takes."""
    found = {}
    for engine in config.engines:
        # A description from data sheets, which only prediction can read, is none: what the instance shows stands for it.
        with suppress(ProfileError):
            found[engine.name] = load_profile(engine.profile)
    return found


def make_agent(config: Config) -> MetaAgent:
    """Builds the agent from the configuration."""
    return MetaAgent(make_loop(config), asks=config.agents.meta_twin or config.agents.meta_selector == "twin")
