"""Work that would hold the loop for too long in one go, done in slices between everything else."""

import asyncio
import logging
import time
from collections.abc import Callable

from hmas.controller.core.errors import SchedulingError
from hmas.controller.runtime.clock import Clock
from hmas.controller.scheduling.scheduler import Scheduler

SLICE_S = 0.001
"""How long a slice lasts before the loop serves everybody else; one batch more at most."""
BATCH = 32
"""Requests that are touched between two looks at the time: 0.1 to 0.3 ms."""
log = logging.getLogger(__name__)


class SlicedWork:
    """Settles the scheduler and works off bursts whose time has come, a slice with each turn of the loop.

    Attributes:
        worst_s: The longest slice so far, seconds; for measurements.
        on_slice: Called after each slice: slices make and drop more objects than anything else here.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, *, ends: Callable[[], bool], pump: Callable[[], None]) -> None:
        """Puts the work together.

        Args:
            scheduler: What `settle` is called on.
            clock: Tells the time.
            ends: Ends a bounded number of requests whose time is up, first in each slice; True while there may be more.
            pump: Called after each slice: what was put in order may be dispatched.
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
        """Asks for slices as long as anything is left. `ends`: requests whose time is up are left too."""
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
