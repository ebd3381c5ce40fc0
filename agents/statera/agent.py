"""Connects statera to the bus: short views in, control actions out."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hmas.agents.statera.budgets import LAWS, add_law
from hmas.agents.statera.loops import Band
from hmas.agents.statera.model import KEEP_ALIVE_S, StateraModel
from hmas.agents.statera.paper.model import PaperStatera
from hmas.agents.statera.tuning import gains_of
from hmas.controller.bus.base import Bus
from hmas.controller.config.plugins import BUDGET_LAW_GROUP, ExtensionPoint
from hmas.controller.config.schema import Config
from hmas.controller.core.messages import ACTIONS, TELEMETRY, VIEW_FRESH_S, VIEWS, Completion, ControlAction, Message, ShortView

REPLAY_ACTIONS = 5_000
REPLAY_TELEMETRY = 5_000
LAW_PLUGINS = ExtensionPoint(BUDGET_LAW_GROUP, "budget law", LAWS, add_law)


class StateraAgent:
    """Binds `StateraModel` to its streams; see `hmas.agents.runtime.shell.Agent`."""

    name = "statera"
    streams: tuple[str, ...] = (VIEWS,)
    max_age_s: Mapping[type[Message], float] = MappingProxyType({ShortView: VIEW_FRESH_S})

    def __init__(self, model: StateraModel | PaperStatera) -> None:
        self.model = model

    async def recover(self, bus: Bus, now_s: float) -> None:  # noqa: ARG002 - part of the protocol
        """Resumes its own last windows and refills the calibration from recent completions."""
        for message in await bus.latest(ACTIONS, REPLAY_ACTIONS):
            if isinstance(message, ControlAction):
                self.model.restored.add(message)
        for message in await bus.latest(TELEMETRY, REPLAY_TELEMETRY):
            if isinstance(message, Completion):
                self.model.learn(message)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Takes views and returns the actions that are due. Without views it posts nothing, and the gateway falls back once it is stale."""
        actions: list[Message] = []
        for message in messages:
            if isinstance(message, ShortView):
                actions += self.model.observe(message, now_s)
        return actions


def make_agent(config: Config) -> StateraAgent:
    """Builds the agent from the configuration.

    Raises:
        ConfigError: The configured tuning file cannot be used, or there is no such budget law.
    """
    agents = config.agents
    shared: dict[str, Any] = {
        "band": Band(min(agents.statera_band_low, agents.statera_band_high), agents.statera_band_high),
        "n_run_min": agents.statera_n_run_min,
        "n_run_start": config.scheduler.n_run,
        "epsilon": agents.statera_epsilon,
        "period_s": agents.statera_period_s,
        "keep_alive_s": min(KEEP_ALIVE_S, agents.stale_after_s / 3.0),
    }
    if agents.statera_law == "paper":
        return StateraAgent(PaperStatera(**shared))
    gains = gains_of(agents.statera_tuning)
    law = LAW_PLUGINS.find(agents.statera_budget_law, "agents.statera_budget_law")
    return StateraAgent(StateraModel(**shared, gains=gains, budget_law=law))
