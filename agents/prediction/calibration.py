"""Calibrates quantiles with outcomes, and detects when a model's error has grown. Pure.

`Band` shifts the outer quantiles of one instance and target until the stated shares lie beyond them (`quantiles.tracked`). `DriftWatch`
compares the live error with the error that the model had when it was accepted.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from hmas.controller.core.statistics.quantiles import tracked

LOW, HIGH = 0.1, 0.9
"""Levels of the outer quantiles; the middle one is the median."""
BAND_RATE = 0.02
"""Step of the outer quantiles, in logarithms."""
WIDEST = math.log(8.0)
"""Largest distance of an outer quantile from the median: a factor of eight."""
ERROR_RATE = 0.02
"""Weight of a new error: the drift watch remembers about fifty completions."""
LEAVE = 2.0
"""Width of the band: this many times the accepted error, at least `LEAST_BAND`."""
RETURN = 0.8
"""Share of the band to which the error must fall for a recovery."""
LEAST_BAND = 0.25
"""Mean absolute logarithm of actual over predicted that never counts as drift: queues vary this much from one minute to the next."""
WARM_UP = 50
"""Completions before drift is detected."""
HOLD = 50
"""Consecutive completions with a low error before the model is used again."""
ERROR_LIMIT = 2.0
"""Largest error of one request that counts."""

Path = Literal["model", "formula"]


@dataclass(slots=True)
class Band:
    """Offsets of the outer quantiles of one instance and target, and how often they held."""

    low: float = 0.0
    high: float = 0.0
    count: int = 0
    at_or_below: dict[float, int] = field(default_factory=lambda: {LOW: 0, 0.5: 0, HIGH: 0})

    def learn(self, error: float, spread: tuple[float, float]) -> None:
        """Takes log(actual / predicted median) of a request; `spread` holds the predicted logarithms of low and high over the median."""
        low, high = self.bounds(spread)
        self.count += 1
        for level, edge in ((LOW, low), (0.5, 0.0), (HIGH, high)):
            self.at_or_below[level] += error <= edge
        self.low = _clamped(tracked(self.low, LOW, BAND_RATE, error <= low))
        self.high = _clamped(tracked(self.high, HIGH, BAND_RATE, error <= high))

    def bounds(self, spread: tuple[float, float]) -> tuple[float, float]:
        """Returns the logarithms of the outer quantiles over the median; each stays on its side of the median."""
        return max(-WIDEST, min(0.0, spread[0] + self.low)), min(WIDEST, max(0.0, spread[1] + self.high))

    def coverage(self) -> dict[float, float]:
        """Returns the share of outcomes at or below each stated quantile; empty before the first."""
        return {level: held / self.count for level, held in self.at_or_below.items()} if self.count else {}


@dataclass(slots=True)
class DriftWatch:
    """Decides whether the model of one instance and target is used.

    Attributes:
        accepted: Mean absolute logarithmic error of the model on held-out data.
        model_error, formula_error: The same error live, of the model and of the formula alone.
        path: Which of the two is used.
    """

    accepted: float
    model_error: float = 0.0
    formula_error: float = 0.0
    count: int = 0
    path: Path = "model"
    _held: int = 0

    @property
    def limit(self) -> float:
        """The error above which the model is not used."""
        return max(LEAST_BAND, LEAVE * self.accepted)

    def learn(self, model_error: float, formula_error: float) -> Path | None:
        """Takes a request's errors, as logarithms; returns the path if it has changed.

        A raised error is enough to leave the model: the formula depends on nothing but the speeds observed on the instance.
        """
        self.count += 1
        rate = max(ERROR_RATE, 1.0 / self.count)
        self.model_error += rate * (min(ERROR_LIMIT, abs(model_error)) - self.model_error)
        self.formula_error += rate * (min(ERROR_LIMIT, abs(formula_error)) - self.formula_error)
        if self.count < WARM_UP:
            return None
        if self.path == "model":
            if self.model_error > self.limit:
                self.path, self._held = "formula", 0
                return self.path
            return None
        self._held = self._held + 1 if self.model_error < RETURN * self.limit else 0
        if self._held >= HOLD:
            self.path = "model"
            return self.path
        return None


def _clamped(offset: float) -> float:
    return max(-WIDEST, min(WIDEST, offset))
