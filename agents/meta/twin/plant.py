"""Learns how long a step of an instance takes. Pure and bounded.

A step with n decoding sequences and p prompt tokens takes base + seq n + prompt p. While one request generates its tokens 2 to L, each step
generates one of them, so the time from its first token to its last is

    base (L - 1) + seq G + prompt P,

with G the tokens that the instance generated meanwhile and P the prompt tokens that it computed. Engines count both. Non-negative least
squares of relative errors fits the three coefficients to completions, with exponential forgetting and shrinkage towards ratios that engines
have in common (or a profile's). Times per token alone would not do: they include other requests' prefills, which a replay adds again.
"""

from collections import deque
from itertools import combinations

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.controller.core.cumulative_trace import CumulativeTrace
from hmas.controller.core.messages import Completion
from hmas.controller.core.types import OutcomeKind

MEMORY = 300.0
"""Completions after which an old one counts 1/e."""
TOKENS_MIN = 8
"""Answers with fewer output tokens are too short to time."""
TOKENS_FULL = 64
"""Output tokens from which on an answer counts fully."""
TOKENS_PER_MS_MOST = 1e4
"""Most plausible tokens per millisecond of an instance; higher rates are ignored."""
PRIOR_WEIGHT = 0.05
"""Weight of the prior in completions: it is right to a factor of about two, one completion to a tenth or a twentieth."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Step time in milliseconds: `base_ms` for any step, `seq_ms` per decoding sequence, `prompt_ms` per prompt token.

    Attributes:
        samples: Completions behind these figures.
    """

    base_ms: float
    seq_ms: float
    prompt_ms: float
    samples: int = 0

    def stretched(self, factor: float) -> "Step":
        """Returns the step with all times multiplied by a factor."""
        return Step(base_ms=self.base_ms * factor, seq_ms=self.seq_ms * factor, prompt_ms=self.prompt_ms * factor, samples=self.samples)


COMMON = Step(base_ms=1.0, seq_ms=0.02, prompt_ms=0.006)
"""Ratios that engines have in common."""


class StepFit:
    """The fit of one instance.

    Args:
        prior: A known step from a profile, which completions outweigh over time. Without one, only the common ratios are known.
    """

    def __init__(self, prior: Step | None = None) -> None:
        self._prompts, self._generated = CumulativeTrace(), CumulativeTrace()
        self._prior = prior
        self._products = np.zeros((4, 4))
        self.samples = 0
        self._waiting: deque[Completion] = deque(maxlen=512)

    def observe(self, at_s: float, prompt_total: int, generation_total: int) -> None:
        """Takes a reading of the engine's counters."""
        self._prompts.count(at_s, prompt_total)
        self._generated.count(at_s, generation_total)
        for _ in range(len(self._waiting)):
            # Completions arrive a moment before the reading that covers their end.
            self._take(self._waiting.popleft(), at_s)

    def learn(self, ended: Completion) -> None:
        """Takes the end of a request that this instance served; it ignores requests that did not complete or are too short to time."""
        if ended.outcome is OutcomeKind.COMPLETED and ended.output_tokens >= TOKENS_MIN and ended.ttft_ms >= 0.0:
            self._waiting.append(ended)

    def _take(self, ended: Completion, now_s: float) -> None:
        start_s, end_s = ended.arrival_s + ended.ttft_ms / 1000.0, ended.arrival_s + ended.total_ms / 1000.0
        if end_s > now_s:
            self._waiting.append(ended)
            return
        prompt, generated = self._prompts.grown(start_s, end_s), self._generated.grown(start_s, end_s)
        took_ms = 1000.0 * (end_s - start_s)
        if prompt is None or generated is None:
            return
        if (prompt + generated) / took_ms > TOKENS_PER_MS_MOST:
            # No engine is that fast: the counter is wrong.
            return
        steps = float(ended.output_tokens - 1)
        row = np.array([steps, max(generated, steps), prompt, took_ms]) / took_ms
        weight = min(1.0, ended.output_tokens / TOKENS_FULL)
        self._products *= 1.0 - 1.0 / MEMORY
        self._products += weight * np.outer(row, row)
        self.samples += 1

    @property
    def step(self) -> Step | None:
        """The current step; None before the first completion without a profile."""
        if not self.samples:
            return self._prior
        squares, targets = self._products[:3, :3], self._products[:3, 3]
        ratios = self._prior or COMMON
        shape = np.array([ratios.base_ms, ratios.seq_ms, ratios.prompt_ms])
        level = 1.0 if self._prior is not None else float(shape @ targets) / max(1e-12, float(shape @ squares @ shape))
        expected = np.maximum(level * shape, 1e-9)
        # Ridge in relative terms: a coefficient that the data do not determine stays at the common ratio.
        system = squares + np.diag(PRIOR_WEIGHT / expected**2)
        right = targets + PRIOR_WEIGHT / expected
        found = least_squares(system, right)
        return Step(base_ms=max(1e-6, float(found[0])), seq_ms=float(found[1]), prompt_ms=float(found[2]), samples=self.samples)


def least_squares(system: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the non-negative x that minimises x' S x / 2 - r' x, for a positive definite S.

    With three unknowns it tries every set of nonzero entries: the best solution without negative entries is the answer, and no library
    has to be loaded for it.
    """
    size = len(right)
    best, found = 0.0, np.zeros(size)
    for count in range(1, size + 1):
        for kept in combinations(range(size), count):
            rows = np.ix_(kept, kept)
            solved = np.linalg.solve(system[rows], right[list(kept)])
            # At a stationary point of these rows the value is -r' x / 2.
            value = -0.5 * float(right[list(kept)] @ solved)
            if (solved >= 0.0).all() and value < best:
                best, found = value, np.zeros(size)
                found[list(kept)] = solved
    return found
