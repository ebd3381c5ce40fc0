"""Corrects predictions by outcomes: a bounded factor per instance and target, learnt online. Pure."""

import math
from dataclasses import dataclass

RATE = 0.01
"""Weight of a new error once there are many: a factor follows a lasting change within a few hundred completions."""
PRIOR = 30.0
"""Completions that "no correction" counts for at the start."""
STEP_LIMIT = math.log(1.35)
"""Largest distance from the present mean at which an error counts, so that storms and stragglers move it little (a Huber location)."""
FACTOR_LIMIT = math.log(4.0)
"""Largest correction: a factor of four either way; a larger error needs another model, not another factor."""


@dataclass(slots=True)
class Residual:
    """Running location of log(actual / predicted)."""

    mean: float = 0.0
    count: int = 0

    def learn(self, actual: float, predicted: float) -> None:
        """Takes an error; meaningless figures (0 or less, not finite) are ignored."""
        if not (actual > 0 and predicted > 0 and math.isfinite(actual) and math.isfinite(predicted)):
            return
        self.count += 1
        surprise = math.log(actual) - math.log(predicted) - self.mean
        self.mean += max(RATE, 1.0 / (self.count + PRIOR)) * min(STEP_LIMIT, max(-STEP_LIMIT, surprise))
        self.mean = min(FACTOR_LIMIT, max(-FACTOR_LIMIT, self.mean))

    @property
    def factor(self) -> float:
        """Factor to multiply a prediction with, 1/4 to 4."""
        return math.exp(self.mean)
