"""Work that would block the event loop for too long at once, done in slices between other callbacks."""

import asyncio
import logging
import time
from collections.abc import Callable

from hmas.controller.core.errors import SchedulingError
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.scheduler import Scheduler

SLICE_S = 0.001
"""Length of a slice before the loop runs other callbacks; one batch may exceed it."""
BATCH = 32
"""Requests processed between two checks of the time: 0.1 to 0.3 ms."""
log = logging.getLogger(__name__)


class SlicedWork:
    """Settles the scheduler and ends bursts of expired requests, one slice per turn of the event loop.

    Attributes:
        worst_s: The longest slice so far, in seconds; for measurements.
        on_slice: Called after each slice, because slices create and drop more objects than anything else here.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, *, ends: Callable[[], bool], pump: Callable[[], None]) -> None:
        """Connects the parts.

        Args:
            scheduler: The scheduler to settle.
            clock: The clock.
            ends: Ends a bounded number of expired requests, first in each slice; True while there may be more.
            pump: Called after each slice: requests that were settled may be dispatched.
        """
        self._scheduler = scheduler
        self._clock = clock
        self._ends = ends
        self._pump = pump
        self._asked = False
        self._overdue = False
        self.worst_s = 0.0
        self.on_slice: Callable[[], None] = lambda: None

    def ask(self, *, ends: bool = False) -> None:
        """Schedules slices until nothing is left. `ends`: expired requests are left too."""
        self._overdue = self._overdue or ends
        if not self._asked and (self._overdue or not self._scheduler.settled):
            self._asked = True
            asyncio.get_running_loop().call_soon(self._slice)

    def _slice(self) -> None:
        self._asked = False
        start_s = time.perf_counter()
        try:
            left = True
            while left and time.perf_counter() - start_s < SLICE_S:
                if self._overdue:
                    self._overdue = self._ends()
                    left = True
                else:
                    left = self._scheduler.settle(BATCH, self._clock.now_s())
        except SchedulingError:
            log.exception("a change of policy was given up")
        self._pump()
        self.on_slice()
        self.worst_s = max(self.worst_s, time.perf_counter() - start_s)
        self.ask()
