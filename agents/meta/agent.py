"""Meta on the bus: short and long views in, decisions out."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agents.meta.model import MetaModel, MetaSettings
from controller.bus.base import Bus
from controller.config.schema import Config
from controller.core.messages import DECISIONS, VIEWS, LongView, Message, MetaDecision, ShortView
from controller.scheduling.pool import POLICIES

DECISION_FRESH_S = 300.0
"""Age beyond which its own last decision is not resumed: the load it was made for has passed."""


class MetaAgent:
    """Binds `MetaModel` to its streams; see `agents.shell.Agent`."""

    name = "meta"
    streams: tuple[str, ...] = (VIEWS,)
    tick_s = 0.0
    max_age_s: Mapping[type[Message], float] = MappingProxyType({ShortView: 3.0, LongView: 10.0})

    def __init__(self, model: MetaModel) -> None:
        self.model = model

    async def recover(self, bus: Bus, now_s: float) -> None:
        """Resumes its own last decision."""
        for message in await bus.latest(DECISIONS):
            if isinstance(message, MetaDecision) and now_s - message.sent_s <= DECISION_FRESH_S:
                self.model.restore(message)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Takes views in order and returns the decisions that follow."""
        decisions: list[Message] = []
        for message in messages:
            decision: MetaDecision | None = None
            if isinstance(message, ShortView):
                decision = self.model.observe_short(message, now_s)
            elif isinstance(message, LongView):
                decision = self.model.observe_long(message, now_s)
            if decision is not None:
                decisions.append(decision)
        return decisions

    def on_tick(self, now_s: float) -> list[Message]:  # noqa: ARG002 - part of the protocol
        """Never called."""
        return []


def make_agent(config: Config) -> MetaAgent:
    """Builds the agent from the configuration."""
    agents = config.agents
    return MetaAgent(
        MetaModel(
            MetaSettings(
                start=config.scheduler.policy,
                pool=frozenset(POLICIES),
                period_s=agents.meta_period_s,
                dwell_s=agents.meta_dwell_s,
                rollback_window_s=agents.meta_rollback_window_s,
                rollback_ratio=agents.meta_rollback_ratio,
            )
        )
    )
