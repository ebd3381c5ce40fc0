"""Progress of a long run on stderr, and its stop in order by Ctrl-C."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from hmas.cli.output import duration_words, hint
from hmas.controller.runtime.clock import SystemClock
from hmas.planning.loads import Load
from hmas.planning.running import Told

TELL_EVERY_S = 2.0


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Gives a function that returns whether Ctrl-C was pressed, and then also prints a note. A second Ctrl-C ends the command as usual."""
    asked = said = False
    before = signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: FrameType | None) -> None:
        # The handler prints nothing: in the middle of a write of a progress line, stderr cannot be written to.
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    def pressed() -> bool:
        nonlocal said
        if asked and not said:
            said = True
            hint("stopping: what has been sent is still served; Ctrl-C again ends at once, without a report")
        return asked

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


class Teller:
    """Progress lines on stderr, one every two seconds."""

    def __init__(self, load: Load) -> None:
        self._clock = SystemClock()
        self._load = load
        self._start_s = self._told_s = self._clock.now_s()

    def tell(self, told: Told) -> None:
        """Prints the progress if two seconds have passed."""
        now_s = self._clock.now_s()
        if now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        wall_s = now_s - self._start_s
        share = told.done / max(1, told.planned)
        left = f", about {duration_words(wall_s * (1.0 - share) / share)} left" if share > 0.02 else ""
        hint(
            f"virtual {told.now_s:.0f} of {self._load.duration_s:.0f} s, {told.done} of {told.planned} requests done; "
            f"wall {wall_s:.0f} s, {told.now_s / wall_s:.0f} times real time{left}"
        )
