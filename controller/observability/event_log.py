"""Events: what changed, set by which source, and why. They go to the bus and to a bounded memory for the operators' API."""

import logging
from collections import deque

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.observability.observer import Event, Observer

KEPT = 1000
"""Events that are kept; and as many steps of statera's besides, which would else push all others out within minutes."""
log = logging.getLogger(__name__)
_LEVEL = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class EventLog(Observer):
    """The gateway's own events; the newest are kept in memory (`KEPT`)."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._steps: deque[Event] = deque(maxlen=KEPT)

    def noted(self, event: Event) -> None:
        """Keeps, posts and logs one event."""
        # Statera changes knobs twice a second: the event log keeps these changes, the text log need not.
        is_step = event.source == "statera" and event.severity == "info"
        (self._steps if is_step else self._kept).append(event)
        self._bus.post(event)
        level = logging.DEBUG if is_step else _LEVEL[event.severity]
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
        kept = sorted([*self._kept, *self._steps], key=lambda event: event.sent_s)
        return [msgspec.structs.asdict(event) for event in (kept[-limit:] if limit > 0 else ())]
