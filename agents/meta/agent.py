"""Connects meta to the bus: views in, policy decisions out. Telemetry and features feed its twin, which replays off the event loop."""

import logging
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from hmas.agents.meta.make import Meta, make_meta
from hmas.agents.meta.pending_work import PendingWork
from hmas.agents.runtime.work import Deferred
from hmas.controller.bus.base import Bus
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import HmasError
from hmas.controller.core.messages import (
    DECISIONS,
    FEATURES,
    NOTICE_FRESH_S,
    TELEMETRY,
    VIEW_FRESH_S,
    VIEWS,
    Completion,
    LongView,
    Message,
    MetaDecision,
    ModelReport,
    RequestFeatures,
    ShortView,
    SystemSnapshot,
)
from hmas.controller.runtime.process import resident_bytes

REPLAY = 5_000
"""Number of newest stream entries read at start."""
REPORT_EVERY_S = 10.0
log = logging.getLogger(__name__)


class MetaAgent:
    """Binds `Meta` to its streams; see `hmas.agents.runtime.shell.Agent`."""

    name = "meta"
    streams: tuple[str, ...] = (VIEWS,)
    max_age_s: Mapping[type[Message], float] = MappingProxyType(
        {ShortView: VIEW_FRESH_S, LongView: 15.0, SystemSnapshot: 10.0, RequestFeatures: NOTICE_FRESH_S}
    )

    def __init__(self, meta: Meta) -> None:
        self.meta = meta
        self.model = meta.model
        # Only the twin needs telemetry, which is the largest of the streams.
        self.follows: tuple[str, ...] = (TELEMETRY, FEATURES) if meta.twin is not None else ()
        self._reported_s = float("-inf")

    async def recover(self, bus: Bus, now_s: float) -> None:
        """Resumes from its own last decisions and fills the twin's window."""
        said = await bus.latest(DECISIONS, REPLAY)
        self.model.restore([message for message in said if isinstance(message, MetaDecision)], now_s)
        since_s = float("-inf")
        for stream in self.follows:
            heard = await bus.latest(stream, REPLAY)
            if stream == TELEMETRY:
                since_s = min((message.sent_s for message in heard if isinstance(message, Completion | SystemSnapshot)), default=since_s)
            for message in heard:
                # Telemetry reaches back less far than features: requests from before it would never be reported as ended.
                if not isinstance(message, RequestFeatures) or message.sent_s >= since_s:
                    self._observe(message)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Takes views and returns the decisions that are due, and every few seconds a report on its trained model, if it has one.

        Without views it posts nothing, and the gateway returns to its configured policy.
        """
        said: list[Message] = []
        for message in messages:
            if isinstance(message, ShortView | LongView):
                said += self.meta.on_view(message, now_s)
            else:
                self._observe(message)
        for call, error in self.model.selector_calls.faults():
            log.error("meta: the selector broke in `%s`, so it proposes nothing; this error is logged once", call, exc_info=error)
        return said + self._reports(now_s)

    def beside(self, now_s: float) -> Deferred[Any] | None:  # noqa: ARG002 - part of the protocol
        """Returns the work that the model waits for: a replay or an answer."""
        asking = self.model.asking
        return None if asking is None else Deferred(_guarded(asking), lambda found, at_s: self._answered(asking, found, at_s))

    def _answered(self, asking: PendingWork, found: "_Found", now_s: float) -> list[Message]:
        if self.model.asking is not asking:
            # The model dropped this work: an operator intervened, the bypass went on, or it took too long.
            return []
        return list(asking.failed(found.fault, now_s) if found.fault else asking.finish(found.result, now_s))

    def _reports(self, now_s: float) -> list[Message]:
        trained = self.meta.trained
        if trained is None or now_s - self._reported_s < REPORT_EVERY_S:
            return []
        self._reported_s = now_s
        return [
            ModelReport(
                sent_s=now_s,
                agent=self.name,
                model=trained.version,
                requests=trained.answered,
                figures=trained.figures(),
                rss_bytes=resident_bytes(),
            )
        ]

    def _observe(self, message: Message) -> None:
        if self.meta.twin is not None:
            self.meta.twin.observe(message)


class _Found(NamedTuple):
    """The result of a piece of work, or its error. An error is a result, so that the work is not requested again forever."""

    result: Any = None
    fault: str = ""


def _guarded(asking: PendingWork) -> Any:
    def compute() -> _Found:
        try:
            return _Found(asking.compute())
        except HmasError as error:
            return _Found(fault=str(error) or type(error).__name__)
        except Exception as error:  # a user's own policy or an unforeseen answer; the fallback decides
            log.exception("meta: work that a decision waited for broke")
            return _Found(fault=f"{type(error).__name__}: {error}")

    return compute


def make_agent(config: Config) -> MetaAgent:
    """Builds the agent from the configuration."""
    return MetaAgent(make_meta(config, clock=time.perf_counter))
