"""Events: what changed, set by which source, and why. They go to the bus and to a bounded memory for the operators' API."""

import logging
from collections import deque

import msgspec

from hmas.controller.bus.base import Bus
from hmas.controller.core.messages import Event, Severity
from hmas.controller.runtime.clock import Clock

KEPT = 1000
log = logging.getLogger(__name__)
_LEVEL = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class EventLog:
    """The gateway's own events; the newest `KEPT` of them are kept in memory."""

    def __init__(self, bus: Bus, clock: Clock, source: str = "gateway") -> None:
        self._bus = bus
        self._clock = clock
        self._source = source
        self._kept: deque[Event] = deque(maxlen=KEPT)

    def note(
        self,
        kind: str,
        subject: str,
        *,
        before: str = "",
        after: str = "",
        reason: str = "",
        severity: Severity = "info",
        decision_id: str = "",
        source: str = "",
    ) -> None:
        """Records one event. `source`: what set it, by default the gateway itself."""
        event = Event(
            sent_s=self._clock.now_s(),
            source=source or self._source,
            kind=kind,
            subject=subject,
            before=before,
            after=after,
            reason=reason,
            severity=severity,
            decision_id=decision_id,
        )
        self._kept.append(event)
        self._bus.post(event)
        # Statera changes knobs twice a second: the event log keeps these changes, the text log need not.
        level = logging.DEBUG if event.source == "statera" and severity == "info" else _LEVEL[severity]
        log.log(
            level,
            "%s %s: %s -> %s (%s) %s",
            kind,
            subject,
            before or "-",
            after or "-",
            event.source,
            reason,
            extra={"decision_id": decision_id},
        )

    def newest(self, limit: int) -> list[dict[str, object]]:
        """The newest events, oldest of them first."""
        kept = list(self._kept)[-limit:] if limit > 0 else []
        return [msgspec.structs.asdict(event) for event in kept]
