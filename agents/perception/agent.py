"""The perception agent on the bus: notices in, features out; completions teach it lengths."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agents.perception.model import PerceptionModel
from controller.bus.base import Bus
from controller.config.schema import Config
from controller.core.messages import REQUESTS, TELEMETRY, Completion, Message, RequestNotice

NOTICE_MAX_AGE_S = 10.0
"""A request that has been queued for longer has been dispatched on defaults, or is about to be."""
REPLAY = 5_000
"""Newest telemetry entries read at start to learn lengths again."""


class PerceptionAgent:
    """Binds `PerceptionModel` to its streams; see `agents.shell.Agent`."""

    name = "perception"
    streams: tuple[str, ...] = (REQUESTS, TELEMETRY)
    tick_s = 0.0
    max_age_s: Mapping[type[Message], float] = MappingProxyType({RequestNotice: NOTICE_MAX_AGE_S})

    def __init__(self, model: PerceptionModel) -> None:
        self.model = model

    async def recover(self, bus: Bus, now_s: float) -> None:  # noqa: ARG002 - part of the protocol
        """Learns lengths from the tail of the telemetry."""
        for message in await bus.latest(TELEMETRY, REPLAY):
            if isinstance(message, Completion):
                self.model.learn(message)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Learns what ended, then answers every notice."""
        for message in messages:
            if isinstance(message, Completion):
                self.model.learn(message)
        return [self.model.perceive(message, now_s) for message in messages if isinstance(message, RequestNotice)]

    def on_tick(self, now_s: float) -> list[Message]:  # noqa: ARG002 - part of the protocol
        """Never called."""
        return []


def make_agent(config: Config) -> PerceptionAgent:
    """Builds the agent from the configuration."""
    return PerceptionAgent(PerceptionModel(min_confidence=config.agents.perception_min_confidence, slo_scale=config.slo.scale))
