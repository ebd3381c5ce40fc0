"""The clock of a running process. Pure code never sees it: it is handed `now_s`."""

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time."""

    def now_s(self) -> float:
        """Seconds since the epoch, never going back inside a process."""
        ...


class SystemClock:
    """Wall time read once at the start, monotonic time since.

    A step of the machine's clock therefore moves no deadline and no window of a running process; two processes agree as
    well as the machine's clock was stable between their starts.
    """

    __slots__ = ("_offset_s",)

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch, never going back."""
        return self._offset_s + time.monotonic()
