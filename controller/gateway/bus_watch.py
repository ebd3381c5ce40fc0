"""Whether a gateway has the bus: its loss and its return, and another gateway that uses it."""

import logging
from collections.abc import Callable

from hmas.controller.bus.base import Bus
from hmas.controller.observability.observer import Observers

log = logging.getLogger(__name__)


class BusWatch:
    """Reports when the bus goes away, comes back, or is taken by another gateway.

    Attributes:
        up: Whether the bus is connected, as of the last look; None before the first.
        holder: Another gateway that has got the bus; this one then posts nothing. Empty otherwise.
    """

    def __init__(self, bus: Bus, observer: Observers, *, on_return: Callable[[], None]) -> None:
        """`on_return`: called when the bus is back: its server may have lost what was posted."""
        self.up: bool | None = None
        self.holder = ""
        self._bus = bus
        self._observer = observer
        self._on_return = on_return
        self._losses = 0

    def look(self) -> None:
        """Reports loss and return; a server that was away for less than a cycle counts as lost, too."""
        health = self._bus.health
        if self.up is None:
            self.up, self._losses = health.connected, health.losses
            return
        if self.up and health.losses > self._losses:
            self.up = False
            self._observer.note("bus", "bus", before="connected", after="away", reason=health.detail, severity="warning")
        self._losses = health.losses
        if health.connected and not self.up:
            self.up = True
            self._observer.note("bus", "bus", before="away", after="connected")
            self._on_return()

    def taken(self, holder: str) -> None:
        """Reports that another gateway has got the bus, or, with an empty text, that this one has it again."""
        self.holder = holder
        reason = f"{holder} uses it: this gateway posts nothing, and the agents do not see its requests" if holder else ""
        states = ("held", "taken by another gateway") if holder else ("taken by another gateway", "held")
        self._observer.note("bus", "bus", before=states[0], after=states[1], reason=reason, severity="error" if holder else "info")
        if holder:
            log.error("the bus is %s; %s", states[1], reason)
