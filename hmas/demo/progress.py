"""The demo's progress on stderr: one line that is rewritten on a terminal, separate lines at intervals elsewhere."""

import sys
from typing import TextIO

from hmas.controller.runtime.clock import Clock

PLAIN_EVERY_S = 5.0
WIDTH = 110


class Reporter:
    """Phases with expected lengths; the remaining time is the rest of the current phase and all later ones."""

    def __init__(self, clock: Clock, phases: list[tuple[str, float]], stream: TextIO | None = None) -> None:
        self._clock = clock
        self._phases = phases
        self._stream = stream or sys.stderr
        self._moving = self._stream.isatty()
        self._started_s = self._phase_s = self._told_s = clock.now_s()
        self._now: tuple[str, float] | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return self._clock.now_s() - self._started_s

    def phase(self, name: str) -> None:
        """Begins the next phase; each may come once, in any order."""
        # Finished phases are removed, because rounds may run the rest in another order.
        if self._now is not None:
            self._phases.remove(self._now)
        self._now = next(phase for phase in self._phases if phase[0] == name)
        self._phase_s = self._clock.now_s()
        self._told_s = 0.0
        self.tick("")

    def left_s(self) -> float:
        """Estimated remaining seconds."""
        if self._now is None:
            return sum(length for _, length in self._phases)
        spent_s = self._clock.now_s() - self._phase_s
        rest = sum(length for _, length in self._phases) - self._now[1]
        return max(0.0, self._now[1] - spent_s) + rest

    def tick(self, text: str) -> None:
        """Prints the progress of the phase."""
        now_s = self._clock.now_s()
        if not self._moving and now_s - self._told_s < PLAIN_EVERY_S:
            return
        self._told_s = now_s
        name = self._now[0] if self._now else ""
        line = f"[{self.elapsed_s:5.1f} s, about {self.left_s():3.0f} s left] {name}: {text}".rstrip(": ")
        self._write(f"\r{line[:WIDTH]:<{WIDTH}}" if self._moving else line + "\n")

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        clear = "\r" + " " * WIDTH + "\r" if self._moving else ""
        self._write(f"{clear}[{self.elapsed_s:5.1f} s] {text}\n")

    def done(self) -> None:
        """Clears the progress line."""
        if self._moving:
            self._write("\r" + " " * WIDTH + "\r")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
