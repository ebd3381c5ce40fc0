"""Connects the QoS agent to the bus: telemetry in, views out."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hmas.agents.qos.model import QosModel
from hmas.controller.bus.base import Bus
from hmas.controller.config.schema import Config
from hmas.controller.core.messages import TELEMETRY, VIEW_FRESH_S, Completion, Message, SystemSnapshot

REPLAY = 5_000
"""Newest telemetry entries read at start to refill the windows."""


class QosAgent:
    """Binds `QosModel` to its streams; see `hmas.agents.runtime.shell.Agent`."""

    name = "qos"
    streams: tuple[str, ...] = (TELEMETRY,)
    # A view of an older snapshot would be of no use. An old completion still calibrates lengths.
    max_age_s: Mapping[type[Message], float] = MappingProxyType({SystemSnapshot: VIEW_FRESH_S})

    def __init__(self, model: QosModel) -> None:
        self.model = model

    async def recover(self, bus: Bus, now_s: float) -> None:  # noqa: ARG002 - part of the protocol; the replay runs on the messages' own times
        """Refills the windows from the end of the telemetry stream, so that views continue where they stopped."""
        for message in await bus.latest(TELEMETRY, REPLAY):
            if isinstance(message, Completion | SystemSnapshot):
                self.model.replay(message)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Takes telemetry and returns the views that are due."""
        views: list[Message] = []
        for message in messages:
            if isinstance(message, Completion):
                self.model.complete(message, now_s)
            elif isinstance(message, SystemSnapshot):
                views += self.model.observe(message, now_s)
        return views


def make_agent(config: Config) -> QosAgent:
    """Builds the agent from the configuration."""
    agents = config.agents
    return QosAgent(
        QosModel(
            short_window_s=agents.qos_short_window_s,
            long_window_s=agents.qos_long_window_s,
            long_period_s=min(5.0, agents.meta_period_s / 2, agents.qos_long_window_s / 4),
        )
    )
