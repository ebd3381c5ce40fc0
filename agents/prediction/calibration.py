"""Corrects predictions with outcomes, scores them, and detects when a model's error has grown. Pure and bounded.

`Residual` moves the median of one instance and target. `DriftWatch` compares the live error with the error that the model had when it was
accepted. `Scoreboard` holds the figures over all instances.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

RATE = 0.01
"""Weight of a new error once there are many: a factor follows a lasting change within a few hundred completions."""
PRIOR = 30.0
"""Completions that "no correction" counts for at the start."""
STEP_LIMIT = math.log(1.35)
"""Largest distance from the present mean at which an error counts, so that storms and stragglers move it little (a Huber location)."""
FACTOR_LIMIT = math.log(4.0)
"""Largest correction: a factor of four either way; a larger error needs another model, not another factor."""
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
WINDOW = 2_000
"""Newest completions that a scoreboard's figures cover."""

Path = Literal["model", "formula"]


@dataclass(slots=True)
class Residual:
    """Running location of log(actual / predicted).

    Attributes:
        mean: The location: what to add to the logarithm of a prediction, log 1/4 to log 4.
    """

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


class Scoreboard:
    """Errors of the actual answers, over all instances."""

    def __init__(self) -> None:
        self._errors: dict[str, deque[float]] = {"ttft": deque(maxlen=WINDOW), "tpot": deque(maxlen=WINDOW)}

    def add(self, target: str, ape: float) -> None:
        """Takes the absolute relative error."""
        self._errors[target].append(ape)

    def figures(self) -> Mapping[str, float]:
        """Returns the median absolute relative error by target: `ttft_ape`, `tpot_ape`; targets without a completion are left out."""
        return {f"{target}_ape": median(errors) for target, errors in self._errors.items() if errors}
