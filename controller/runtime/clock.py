"""The clock of a running process. Pure code does not use it; it gets `now_s` as an argument."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of the current time."""

    def now_s(self) -> float:
        """Seconds since the epoch, never going back inside a process."""


class SystemClock:
    """Wall time read once at the start, plus the monotonic time since then.

    A step of the machine's clock therefore changes no deadline and no window of a running process. The clocks of two processes differ by
    the steps of the machine's clock between their starts.
    """

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch, never going back."""
        return self._offset_s + time.monotonic()
