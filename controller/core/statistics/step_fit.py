"""How long a step of an engine takes, fitted to what steps have taken. Pure.

A step with n decoding sequences and p prompt tokens takes base + seq n + prompt p. Each measurement is a sum of such steps, with the time
that they took together. Non-negative least squares of relative errors fits the three coefficients, with exponential forgetting and
shrinkage towards ratios that engines have in common (or a profile's), so that a few measurements already give usable figures.
"""

from collections.abc import Sequence
from itertools import combinations

import msgspec

MEMORY = 300.0
"""Measurements after which an old one counts 1/e."""
PRIOR_WEIGHT = 0.05
"""Weight of the prior in measurements: it is right to a factor of about two, one measurement to a tenth or a twentieth."""
LEAST_STEP_MS = 0.2
"""No engine takes less for a step: an answer with less per token was read in one lot, and does not show when its tokens came."""
FASTER_MOST = 4.0
"""Once `TRUSTED` measurements are known, an answer counts as at most so many times faster than they say. The fit is of relative errors, so
one answer of which most was read in one lot would otherwise outweigh all others. An engine that becomes faster is followed all the same."""
TRUSTED = 16
LEAST_BASE = 0.05
"""Least base, as a share of the prior's: no engine computes a batch in no time."""


class Step(msgspec.Struct, frozen=True):
    """Step time in milliseconds: `base_ms` for any step, `seq_ms` per decoding sequence, `prompt_ms` per prompt token."""

    base_ms: float
    seq_ms: float
    prompt_ms: float
    samples: int = 0

    def decode_ms(self, sequences: float) -> float:
        """Returns the time of a step that only decodes."""
        return self.base_ms + self.seq_ms * sequences

    def stretched(self, factor: float) -> "Step":
        """Returns the step with all times multiplied by a factor."""
        return Step(self.base_ms * factor, self.seq_ms * factor, self.prompt_ms * factor, self.samples)


COMMON = Step(base_ms=1.0, seq_ms=0.02, prompt_ms=0.006)
"""Ratios that engines have in common."""


class StepFit:
    """The fit of one instance.

    Args:
        prior: A known step from a profile, which measurements outweigh over time. Without one, only the common ratios are known.

    Attributes:
        prior: As given.
        samples: Number of measurements.
    """

    def __init__(self, prior: Step | None = None) -> None:
        self.prior = prior
        self.samples = 0
        self._products = [[0.0] * 4 for _ in range(4)]
        self._step = prior
        self._is_new = False

    def add(self, steps: float, sequences: float, prompt_tokens: float, took_ms: float, weight: float) -> None:
        """Adds a measurement.

        Args:
            steps: Number of steps.
            sequences: Their decoding sequences, summed.
            prompt_tokens: Their prompt tokens, summed.
            took_ms: What they took together, above 0.
            weight: 1 for a full measurement, less for a less certain one.
        """
        row = (steps / took_ms, sequences / took_ms, prompt_tokens / took_ms, 1.0)
        keep = 1.0 - 1.0 / MEMORY
        self._products = [
            [keep * product + weight * left * right for product, right in zip(products, row, strict=True)]
            for products, left in zip(self._products, row, strict=True)
        ]
        self.samples += 1
        self._is_new = True

    def add_answer(self, steps: float, sequences: float, prompt_tokens: float, took_ms: float, weight: float) -> None:
        """Adds a measurement that comes from the times of an answer's tokens, which may have been read late and in one lot; as `add`."""
        if took_ms < LEAST_STEP_MS * steps:
            return
        if self.samples >= TRUSTED and (step := self.step) is not None:
            expected_ms = step.base_ms * steps + step.seq_ms * sequences + step.prompt_ms * prompt_tokens
            took_ms = max(took_ms, expected_ms / FASTER_MOST)
        self.add(steps, sequences, prompt_tokens, took_ms, weight)

    @property
    def step(self) -> Step | None:
        """The current step; None before the first measurement without a prior."""
        if self._is_new:
            self._step, self._is_new = self._solved(), False
        return self._step

    def _solved(self) -> Step:
        squares, targets = [products[:3] for products in self._products[:3]], [products[3] for products in self._products[:3]]
        ratios = self.prior or COMMON
        shape = (ratios.base_ms, ratios.seq_ms, ratios.prompt_ms)
        level = 1.0
        if self.prior is None:
            level = _dot(shape, targets) / max(1e-12, _dot(shape, [_dot(row, shape) for row in squares]))
        expected = [max(level * part, 1e-9) for part in shape]
        # Ridge in relative terms: a coefficient that the data do not determine stays at the prior's ratio.
        for number, part in enumerate(expected):
            squares[number][number] += PRIOR_WEIGHT / (part * part)
            targets[number] += PRIOR_WEIGHT / part
        base_ms, seq_ms, prompt_ms = least_squares(squares, targets)
        return Step(max(LEAST_BASE * expected[0], base_ms), seq_ms, prompt_ms, self.samples)


def least_squares(system: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Returns the non-negative x that minimises x' S x / 2 - r' x, for a positive definite S.

    With three unknowns it tries every set of nonzero entries: the best solution without negative entries is the answer, and no library
    has to be loaded for it, not in the gateway either. If the solution with all of them has no negative entry, there is no better one.
    """
    size = len(right)
    best, found = 0.0, [0.0] * size
    for count in range(size, 0, -1):
        for kept in combinations(range(size), count):
            solved = _solved([[system[row][column] for column in kept] for row in kept], [right[row] for row in kept])
            if min(solved) < 0.0:
                continue
            whole = [0.0] * size
            for place, value in zip(kept, solved, strict=True):
                whole[place] = value
            if count == size:
                return whole
            # At a stationary point of these rows the value is -r' x / 2.
            value = -0.5 * _dot(right, whole)
            if value < best:
                best, found = value, whole
    return found


def _solved(rows: list[list[float]], right: list[float]) -> list[float]:
    """Solves a positive definite system by elimination, in place."""
    size = len(right)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = rows[row][pivot] / rows[pivot][pivot]
            for column in range(pivot, size):
                rows[row][column] -= factor * rows[pivot][column]
            right[row] -= factor * right[pivot]
    for row in range(size - 1, -1, -1):
        rest = sum(rows[row][column] * right[column] for column in range(row + 1, size))
        right[row] = (right[row] - rest) / rows[row][row]
    return right


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))
