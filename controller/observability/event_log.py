"""Events: what changed, set by which source, and why. They go to the bus and to a bounded memory for the operators' API."""

import logging
from collections import deque

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.observability.observer import Event, Observer

KEPT = 1000
log = logging.getLogger(__name__)
_LEVEL = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class EventLog(Observer):
    """The gateway's own events; the newest `KEPT` of them are kept in memory."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._kept: deque[Event] = deque(maxlen=KEPT)

    def noted(self, event: Event) -> None:
        """Keeps, posts and logs one event."""
        self._kept.append(event)
        self._bus.post(event)
        # Statera changes knobs twice a second: the event log keeps these changes, the text log need not.
        level = logging.DEBUG if event.source == "statera" and event.severity == "info" else _LEVEL[event.severity]
        log.log(
            level,
            "%s %s: %s -> %s (%s) %s",
            event.kind,
            event.subject,
            event.before or "-",
            event.after or "-",
            event.source,
            event.reason,
            extra={"decision_id": event.decision_id},
        )

    def newest(self, limit: int) -> list[dict[str, object]]:
        """The newest events, oldest of them first."""
        kept = list(self._kept)[-limit:] if limit > 0 else []
        return [msgspec.structs.asdict(event) for event in kept]
