"""Receives the agents' messages: perception and prediction change a request's estimates, statera and meta the active settings."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from hmas.controller.bus.base import Bus
from hmas.controller.control.agent_liveness import AgentLiveness
from hmas.controller.core.errors import BusError
from hmas.controller.core.messages import (
    ACTIONS,
    COSTS,
    DECISIONS,
    FEATURES,
    MAXLEN,
    MODELS,
    NOTICE_FRESH_S,
    VIEWS,
    ControlAction,
    DecisionOutcome,
    LongView,
    Message,
    MetaDecision,
    ModelReport,
    RequestCost,
    RequestFeatures,
    ShortView,
)
from hmas.controller.gateway.control_loop.apply import Control
from hmas.controller.gateway.requests.manager import RequestManager
from hmas.controller.observability.agent_metrics import ModelReports
from hmas.controller.observability.decision_log import DecisionLog
from hmas.controller.observability.observer import Observers
from hmas.controller.runtime.clock import Clock

STREAMS = (FEATURES, COSTS, ACTIONS, DECISIONS, MODELS)
RETRY_S = 1.0
VIEWS_EVERY_S = 1.0
RESUMED_ACTIONS = 5_000
log = logging.getLogger(__name__)
_SENDERS: Mapping[type[Message], str] = {
    RequestFeatures: "perception",
    RequestCost: "prediction",
    ControlAction: "statera",
    MetaDecision: "meta",
    DecisionOutcome: "meta",
}


class AgentSubscriber:
    """Follows the agents' streams, and notes in `liveness` when each agent was last heard.

    An agent that is not `running` by configuration is not heard: a unit or a container may have started it all the same.
    """

    def __init__(
        self,
        *,
        running: Collection[str],
        bus: Bus,
        manager: RequestManager,
        control: Control,
        reports: ModelReports,
        decisions: DecisionLog,
        liveness: AgentLiveness,
        observer: Observers,
        clock: Clock,
    ) -> None:
        self._running = running
        self._bus = bus
        self._manager = manager
        self._control = control
        self._reports = reports
        self._decisions = decisions
        self._liveness = liveness
        self._observer = observer
        self._clock = clock

    async def resume(self) -> None:
        """Restores the last messages that statera and meta sent before this process started."""
        messages = [message for message in await self._bus.latest(DECISIONS, MAXLEN[DECISIONS]) if self._hears(message)]
        for message in messages:
            if isinstance(message, MetaDecision | DecisionOutcome):
                self._decisions.record(message)
        decisions = [message for message in messages if isinstance(message, MetaDecision)]
        actions: Mapping[str, ControlAction] = {
            message.instance: message
            for message in await self._bus.latest(ACTIONS, RESUMED_ACTIONS)
            if isinstance(message, ControlAction) and self._hears(message)
        }
        self._control.resume(decisions[-1:], list(actions.values()))

    async def run(self) -> None:
        """Follows the streams until cancelled; waits for a bus that is away."""
        while True:
            try:
                async for deliveries in self._bus.follow(STREAMS):
                    if deliveries:
                        self._receive([delivery.message for delivery in deliveries])
            except BusError as error:
                log.warning("following the agents' streams failed: %s", error)
            await asyncio.sleep(RETRY_S)

    def _receive(self, messages: Sequence[Message]) -> None:
        # A policy is a plugin, and may raise anything: the agents are heard all the same.
        for message in messages:
            try:
                self.on_message(message)
            except Exception:
                log.exception("a message of an agent was given up: %s", type(message).__name__)
        try:
            self._control.settle()
            self._manager.pump()
        except Exception:
            log.exception("what the agents' messages change was given up")

    async def watch_views(self) -> None:
        """Notes once a second whether qos has sent another view. Its views go to other agents and are not followed here."""
        last_s = -1.0
        while True:
            for view in await self._bus.latest(VIEWS):
                if isinstance(view, ShortView | LongView) and view.sent_s != last_s:
                    last_s = view.sent_s
                    self._liveness.received("qos", self._clock.now_s())
            await asyncio.sleep(VIEWS_EVERY_S)

    def on_message(self, message: Message) -> None:
        """Processes one message."""
        if not self._hears(message):
            return
        now_s = self._clock.now_s()
        # After a failover of the bus its streams may be read again from the start: what was sent long ago is no sign of life.
        is_old = float(getattr(message, "sent_s", now_s)) < now_s - NOTICE_FRESH_S
        if not is_old and (sender := _SENDERS.get(type(message))):
            self._liveness.received(sender, now_s)
        match message:
            case RequestFeatures() if not is_old:
                self._manager.on_features(message)
            case RequestCost() if not is_old:
                self._manager.on_cost(message)
            case ControlAction():
                self._control.on_action(message)
            case MetaDecision():
                if self._decisions.record(message):
                    self._observer.decided(message)
                self._control.on_decision(message)
            case DecisionOutcome():
                self._decisions.record(message)
            case ModelReport():
                if not is_old:
                    self._liveness.reported(message.agent, now_s)
                self._reports.record(message)

    def _hears(self, message: Message) -> bool:
        sender = _SENDERS.get(type(message))
        return sender is None or sender in self._running
