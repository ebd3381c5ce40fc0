"""The pace of an engine by its own counters, while no stream shows it. Pure."""

from typing import NamedTuple

from hmas.controller.core.statistics.step_fit import Step, StepFit
from hmas.engines.base import EngineSnapshot

SPAN_S = 1.0
"""Time over which counts are added up: an engine counts a prompt at its end, and in a quarter of a second often nothing else."""


class Counted(NamedTuple):
    """What an engine has done for a while.

    Attributes:
        step: The fit of how long its steps take.
        token_ms: Time for each step in the mean, stops for prompts included.
        sequences: Sequences in its batch, in the mean.
        steps: Steps of each of these.
        prompt_tokens: Tokens of the prompts that it has computed, cached ones included.
    """

    step: Step
    token_ms: float
    sequences: float
    steps: float
    prompt_tokens: int


class EngineCount:
    """Adds up what the counters of an engine grow by while it has work, and fits its steps to that."""

    __slots__ = ("_fit", "_last", "_next", "_prompt_tokens", "_sequence_s", "_settled", "_span_s", "_tokens")

    def __init__(self) -> None:
        self._fit = StepFit()
        self._last: EngineSnapshot | None = None
        self._next: EngineSnapshot | None = None
        self._settled = False
        self.restart()

    def restart(self) -> None:
        """Forgets what was added up since the last `take`."""
        self._tokens = self._prompt_tokens = 0
        self._span_s = self._sequence_s = 0.0

    def saw(self, snapshot: EngineSnapshot) -> None:
        """Takes a reading of the engine."""
        self._add()
        self._next = snapshot

    def _add(self) -> None:
        """Adds up what the counters have grown by until the newest reading."""
        last, snapshot = self._last, self._next
        if snapshot is None:
            return
        self._next = None
        if last is None or not snapshot.running or snapshot.taken_s <= last.taken_s or _went_back(last, snapshot):
            self._last, self._settled = snapshot if snapshot.running else None, False
            return
        tokens = snapshot.generation_tokens_total - last.generation_tokens_total
        if not tokens:
            # An engine may tell its counters more rarely than its load.
            return
        self._last = snapshot
        if not self._settled:
            # They may have grown before its work began, or not been read then.
            self._settled = True
            return
        span_s = snapshot.taken_s - last.taken_s
        self._tokens += tokens
        self._prompt_tokens += snapshot.prompt_tokens_total - last.prompt_tokens_total
        self._span_s += span_s
        self._sequence_s += 0.5 * (last.running + snapshot.running) * span_s

    def take(self, now_s: float) -> Counted | None:
        """What was counted before `now_s`, once it is `SPAN_S`; None until then, and of an engine that counts no tokens.

        A reading of this very moment counts later: whether it comes before or after a tick would be chance.
        """
        if self._next is not None and self._next.taken_s < now_s:
            self._add()
        if self._span_s < SPAN_S or not self._tokens:
            return None
        sequences, took_ms, prompt_tokens = self._sequence_s / self._span_s, 1000.0 * self._span_s, self._prompt_tokens
        steps = self._tokens / sequences
        self._fit.add(steps, float(self._tokens), float(prompt_tokens), took_ms, 1.0)
        self.restart()
        step = self._fit.step
        return None if step is None else Counted(step, took_ms / steps, sequences, steps, prompt_tokens)


def _went_back(last: EngineSnapshot, snapshot: EngineSnapshot) -> bool:
    """Whether the engine has restarted."""
    tokens = snapshot.generation_tokens_total < last.generation_tokens_total
    return tokens or snapshot.prompt_tokens_total < last.prompt_tokens_total
