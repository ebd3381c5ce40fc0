"""Learns from an engine's counters how long its steps take. Pure and bounded.

While one request generates its tokens 2 to L, each step generates one of them, so the time from its first token to its last is

    base (L - 1) + seq G + prompt P,

with G the tokens that the instance generated meanwhile and P the prompt tokens that it computed. Engines count both. Times per token alone
would not do: they include other requests' prefills, which a replay adds again.
"""

from collections import deque

from hmas.controller.core.messages import Completion
from hmas.controller.core.statistics.cumulative_trace import CumulativeTrace
from hmas.controller.core.statistics.step_fit import Step, StepFit
from hmas.controller.core.types import OutcomeKind

TOKENS_MIN = 8
"""Answers with fewer output tokens are too short to time."""
TOKENS_FULL = 64
"""Output tokens from which on an answer counts fully."""
TOKENS_PER_MS_MOST = 1e4
"""Most plausible tokens per millisecond of an instance; higher rates are ignored."""


class CountedSteps:
    """The steps of one instance, fitted to completions by the counters' growth beside them."""

    def __init__(self) -> None:
        self._fit = StepFit()
        self._prompts, self._generated = CumulativeTrace(), CumulativeTrace()
        self._waiting: deque[Completion] = deque(maxlen=512)

    @property
    def samples(self) -> int:
        """Number of completions behind the fit."""
        return self._fit.samples

    @property
    def step(self) -> Step | None:
        """The current step; None before the first completion."""
        return self._fit.step

    def observe(self, at_s: float, prompt_total: int, generation_total: int) -> None:
        """Takes a reading of the engine's counters."""
        self._prompts.count(at_s, prompt_total)
        self._generated.count(at_s, generation_total)
        for _ in range(len(self._waiting)):
            # Completions arrive a moment before the reading that covers their end.
            self._take(self._waiting.popleft(), at_s)

    def learn(self, ended: Completion) -> None:
        """Takes the end of a request that this instance served; it ignores those that did not complete or are too short to time.

        It ignores several answers, too: only the sum of their lengths is known, and the longest takes the time.
        """
        timed = ended.output_tokens >= TOKENS_MIN and ended.sequences == 1 and ended.ttft_ms >= 0.0
        if ended.outcome is OutcomeKind.COMPLETED and timed:
            self._waiting.append(ended)

    def _take(self, ended: Completion, now_s: float) -> None:
        start_s, end_s = ended.arrival_s + ended.ttft_ms / 1000.0, ended.arrival_s + ended.total_ms / 1000.0
        if end_s > now_s:
            self._waiting.append(ended)
            return
        prompt, generated = self._prompts.grown(start_s, end_s), self._generated.grown(start_s, end_s)
        took_ms = 1000.0 * (end_s - start_s)
        # An engine that is faster than any has a wrong counter.
        if prompt is None or generated is None or (prompt + generated) / took_ms > TOKENS_PER_MS_MOST:
            return
        steps = float(ended.output_tokens - 1)
        self._fit.add_answer(steps, max(generated, steps), prompt, took_ms, min(1.0, ended.output_tokens / TOKENS_FULL))
