"""Meta on the bus: views in, policy decisions out."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agents.meta.model import MetaModel
from controller.bus.base import Bus
from controller.config.schema import Config
from controller.core.messages import DECISIONS, VIEWS, LongView, Message, MetaDecision, ShortView
from controller.scheduling.pool import POLICIES

DECISION_FRESH_S = 600.0
"""Age beyond which its own last decision is not resumed: the workload it was made for has passed."""


class MetaAgent:
    """Binds `MetaModel` to its streams; see `agents.shell.Agent`."""

    name = "meta"
    streams: tuple[str, ...] = (VIEWS,)
    tick_s = 0.0
    max_age_s: Mapping[type[Message], float] = MappingProxyType({ShortView: 3.0, LongView: 15.0})

    def __init__(self, model: MetaModel) -> None:
        self.model = model

    async def recover(self, bus: Bus, now_s: float) -> None:
        """Resumes its own last decision."""
        for message in await bus.latest(DECISIONS):
            if isinstance(message, MetaDecision) and now_s - message.sent_s <= DECISION_FRESH_S:
                self.model.restore(message, now_s)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Takes views and returns the decisions that are due. Without views it says nothing, and the gateway falls back."""
        decisions: list[Message] = []
        for message in messages:
            if isinstance(message, ShortView):
                decisions += self.model.on_short(message, now_s)
            elif isinstance(message, LongView):
                decisions += self.model.on_long(message, now_s)
        return decisions

    def on_tick(self, now_s: float) -> list[Message]:  # noqa: ARG002 - part of the protocol
        """Never called."""
        return []


def make_agent(config: Config) -> MetaAgent:
    """Builds the agent from the configuration."""
    agents = config.agents
    return MetaAgent(
        MetaModel(
            start=config.scheduler.policy,
            pool=POLICIES,
            period_s=agents.meta_period_s,
            dwell_s=agents.meta_dwell_s,
            rollback_window_s=agents.meta_rollback_window_s,
            rollback_ratio=agents.meta_rollback_ratio,
            settle_s=agents.qos_short_window_s,
            keep_alive_s=min(5.0, agents.meta_period_s, agents.stale_after_s / 3),
        )
    )
