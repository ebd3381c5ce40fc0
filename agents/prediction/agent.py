"""The prediction agent on the bus: features in, costs out; snapshots and completions keep it up to date."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from agents.prediction.model import PredictionModel, Regressor
from agents.prediction.regressor import SHIPPED, load_regressor
from controller.bus.base import Bus
from controller.config.schema import Config
from controller.core.errors import ModelError
from controller.core.messages import FEATURES, TELEMETRY, Completion, Event, Message, RequestFeatures, SystemSnapshot

log = logging.getLogger(__name__)

FEATURES_MAX_AGE_S = 10.0
"""A request that has been queued for longer has been dispatched on defaults, or is about to be."""
REPLAY = 5_000
"""Newest telemetry entries read at start to learn speeds and loads again."""


class PredictionAgent:
    """Binds `PredictionModel` to its streams; see `agents.shell.Agent`.

    Args:
        fallback: Why there is no regressor, empty where there is one; told to operators once.
    """

    name = "prediction"
    streams: tuple[str, ...] = (FEATURES, TELEMETRY)
    tick_s = 1.0
    max_age_s: Mapping[type[Message], float] = MappingProxyType({RequestFeatures: FEATURES_MAX_AGE_S})

    def __init__(self, model: PredictionModel, fallback: str = "") -> None:
        self.model = model
        self._fallback = fallback

    async def recover(self, bus: Bus, now_s: float) -> None:  # noqa: ARG002 - part of the protocol
        """Goes through the tail of the telemetry."""
        for message in await bus.latest(TELEMETRY, REPLAY):
            self._follow(message)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Brings the picture up to date, then answers all requests at once."""
        for message in messages:
            self._follow(message)
        return [*self.model.predict([message for message in messages if isinstance(message, RequestFeatures)], now_s)]

    def on_tick(self, now_s: float) -> list[Message]:
        """Says once that it works without its model."""
        if not self._fallback:
            return []
        reason, self._fallback = self._fallback, ""
        return [
            Event(
                sent_s=now_s,
                source=self.name,
                kind="model_fallback",
                subject="cost model",
                before="catboost",
                after="analytic formula",
                reason=reason,
                severity="warning",
            )
        ]

    def _follow(self, message: Message) -> None:
        if isinstance(message, SystemSnapshot):
            self.model.observe(message)
        elif isinstance(message, Completion):
            self.model.learn(message)


def make_agent(config: Config) -> PredictionAgent:
    """Builds the agent; without a usable model file it works by the analytic formula and the residuals."""
    path = Path(config.agents.prediction_model).expanduser() if config.agents.prediction_model else SHIPPED
    regressor: Regressor | None = None
    fallback = ""
    try:
        regressor = load_regressor(path)
    except ModelError as error:
        fallback = str(error)
        log.warning("prediction works by the analytic formula: %s", error)
    return PredictionAgent(PredictionModel(regressor), fallback)
