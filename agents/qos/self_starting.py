"""Tests whether a figure still follows its earlier distribution, without prior knowledge of it. Pure.

Hawkins' self-starting CUSUM (1987): each block's score is compared with mean and deviation of the blocks before it, converted to a standard
normal figure with the matching t distribution, and added up beyond a slack. While the scores are independent and normal, the figures are
independent standard normal from the first on, so the rate of false alarms is that of the plain CUSUM.
"""

import math

SLACK = 0.5
"""Standard deviations subtracted from each block (k): tuned to a shift of one deviation."""
LIMIT = 8.0
"""Sum at which a change is reported (h). By Siegmund's approximation one side gives a false alarm once in
(exp(2 k b) - 1 - 2 k b) / (2 k^2) blocks with b = h + 1.166, which is 19,000; two sides together once in 9,500."""
CLIP = 4.0
"""Largest step of one block: a single one is an outlier, and a change needs at least three in a row."""
WARM_UP = 8
"""Blocks before the first is judged."""
MEMORY = 240
"""Effective number of blocks behind mean and deviation: older ones fade, so a slow drift is followed and only a break is reported."""


class Reference:
    """Mean and deviation of the scores so far.

    A score with weight w has the variance s^2 / w; s is kept.

    Args:
        floor: Smallest s that is used, more than 0.
    """

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._blocks = 0.0
        self._weight = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def judge(self, score: float, weight: float = 1.0) -> float | None:
        """Takes a score and returns how unusual it is, a standard normal figure within -CLIP and CLIP; None during warm-up."""
        found: float | None = None
        if self._weight > 0.0:
            scale = math.sqrt(1.0 / weight + 1.0 / self._weight)
            if self._blocks >= WARM_UP:
                deviation = max(self._floor, math.sqrt(self._squares / (self._blocks - 1.0)))
                found = _normal((score - self._mean) / (scale * deviation), self._blocks - 1.0)
                # An outlier must not make the reference insensitive to all that follows.
                reach = CLIP * scale * deviation
                score = min(self._mean + reach, max(self._mean - reach, score))
            self._squares += ((score - self._mean) / scale) ** 2
        if self._blocks >= MEMORY:
            fade = 1.0 - 1.0 / MEMORY
            self._squares, self._weight, self._blocks = self._squares * fade, self._weight * fade, self._blocks * fade
        self._weight += weight
        self._mean += weight / self._weight * (score - self._mean)
        self._blocks += 1.0
        return found


def _normal(t: float, freedom: float) -> float:
    """Converts a t with `freedom` degrees of freedom to the equally likely standard normal figure, within 0.01 from 7 on (Wallace 1959)."""
    figure = (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.copysign(min(CLIP, figure), t)


class Cusum:
    """One side of a CUSUM.

    Attributes:
        run: Blocks since the sum was last 0; a reported change began with the first of them.
    """

    def __init__(self) -> None:
        self.sum = 0.0
        self.run = 0

    def add(self, figure: float) -> bool:
        """Takes a block, with the sign that counts on this side; returns True if there is a change to report."""
        self.sum = max(0.0, self.sum + figure - SLACK)
        self.run = self.run + 1 if self.sum > 0.0 else 0
        return self.sum > LIMIT
