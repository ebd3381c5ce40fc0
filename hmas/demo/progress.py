"""The demo's progress on stderr: a line now and then, with the time that the rest will take."""

from hmas.cli.output import hint
from hmas.controller.runtime.clock import Clock

EVERY_S = 5.0


class Reporter:
    """Phases with expected lengths, seconds; the remaining time is the rest of the current phase and all later ones."""

    def __init__(self, clock: Clock, phases: list[tuple[str, float]]) -> None:
        self._clock = clock
        self._left = dict(phases)
        self._name = ""
        self._started_s = self._phase_s = self._shown_s = clock.now_s()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return self._clock.now_s() - self._started_s

    def phase(self, name: str) -> None:
        """Begins the next phase; each may come once, in any order."""
        self._left.pop(self._name, None)
        self._name = name
        self._phase_s = self._clock.now_s()
        self._shown_s = 0.0
        self.tick("")

    def left_s(self) -> float:
        """Estimated remaining seconds."""
        spent_s = min(self._clock.now_s() - self._phase_s, self._left.get(self._name, 0.0))
        return sum(self._left.values()) - spent_s

    def tick(self, text: str) -> None:
        """Prints the progress of the phase, every five seconds at most."""
        if self._clock.now_s() - self._shown_s >= EVERY_S:
            self._shown_s = self._clock.now_s()
            hint(f"[{self.elapsed_s:5.1f} s, about {self.left_s():3.0f} s left] {self._name}: {text}".rstrip(": "))

    def say(self, text: str) -> None:
        """Prints a line."""
        hint(f"[{self.elapsed_s:5.1f} s] {text}")
