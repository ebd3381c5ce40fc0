"""Perception's quality on live traffic: predictions compared with outcomes, over the newest completions. Pure, bounded."""

import math
from collections import Counter, deque
from statistics import median

import msgspec

from hmas.agents.perception.lengths.calibration import share_below
from hmas.agents.perception.lengths.model import Forecast
from hmas.controller.core.lengths import LEVELS, MEDIAN
from hmas.controller.core.statistics.quantiles import pinball
from hmas.controller.core.types import TaskType

WINDOW = 2_000
"""Newest answers and completions that the figures cover."""


class Score(msgspec.Struct, frozen=True):
    """One forecast compared with its outcome.

    Attributes:
        below: By level, whether the answer was at most as long as predicted; behind a client's cap, the probability of that.
        pinball: Mean pinball loss over the levels, of natural logs of tokens: the proper score of quantiles, 0 at best.
        error: Absolute error of the median over the real length.
    """

    below: tuple[float, ...]
    pinball: float
    error: float


def score(forecast: Forecast, output_tokens: int) -> Score:
    """Scores a forecast; `output_tokens` is 1 or more.

    An answer that ran into its cap would have been longer. For a quantile beyond the cap, the prediction itself gives the probability that
    the answer passes it: the share of lengths above the cap that does.
    """
    length = math.log(output_tokens)
    below = share_below(forecast.raw, length, censored=length >= forecast.cap - 1e-9)
    losses = [pinball(length, quantile, level) for level, quantile in zip(LEVELS, forecast.log_quantiles, strict=True)]
    return Score(tuple(below), sum(losses) / len(losses), abs(math.expm1(forecast.log_quantiles[MEDIAN] - length)))


class FrequentTask:
    """The most frequent task type of the newest requests: the prior of a request without a type (H-MAS 3.2)."""

    def __init__(self, window: int = WINDOW) -> None:
        self._newest: deque[TaskType] = deque(maxlen=window)
        self._counts: Counter[TaskType] = Counter()

    def add(self, task: TaskType) -> None:
        """Counts a request whose type was read."""
        if len(self._newest) == self._newest.maxlen:
            self._counts[self._newest[0]] -= 1
        self._newest.append(task)
        self._counts[task] += 1

    @property
    def task(self) -> TaskType:
        """The type, of several the one that came first; `unknown` as long as none was read."""
        return max(self._counts, key=self._counts.__getitem__, default=TaskType.UNKNOWN)


class Tally:
    """Figures of one model.

    Attributes:
        requests: Answered so far; `scored`: those of them with a completion.
        learnt: Completions learnt from, its own requests' and others'.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self.requests = 0
        self.scored = 0
        self.learnt = 0
        self._answers: deque[tuple[bool, float]] = deque(maxlen=window)
        self._scores: deque[Score] = deque(maxlen=window)
        self._batches: deque[tuple[int, float]] = deque(maxlen=window)

    def answered(self, *, unknown: bool, confidence: float) -> None:
        """Counts one answered request."""
        self.requests += 1
        self._answers.append((unknown, confidence))

    def batch(self, size: int, inference_ms: float) -> None:
        """Counts one batch that was read."""
        self._batches.append((size, inference_ms))

    def came(self, one: Score) -> None:
        """Counts one completion of an answered request."""
        self.scored += 1
        self._scores.append(one)

    def coverage(self) -> dict[str, float]:
        """Returns, by level, the share of answers at most as long as predicted; empty before the first."""
        if not self._scores:
            return {}
        columns = zip(*(one.below for one in self._scores), strict=True)
        return {f"{level:g}": sum(column) / len(self._scores) for level, column in zip(LEVELS, columns, strict=True)}

    def figures(self) -> dict[str, float]:
        """Returns the figures so far, by the names of `hmas.controller.observability.agent_metrics`."""
        found = {"learnt": float(self.learnt)}
        if self._answers:
            found["unknown_share"] = sum(unknown for unknown, _ in self._answers) / len(self._answers)
            found["confidence"] = sum(confidence for _, confidence in self._answers) / len(self._answers)
        if self._scores:
            found["pinball"] = sum(one.pinball for one in self._scores) / len(self._scores)
            found["median_ape"] = median(one.error for one in self._scores)
        if self._batches:
            requests = sum(size for size, _ in self._batches)
            found["batch_size"] = requests / len(self._batches)
            found["inference_ms"] = sum(ms for _, ms in self._batches) / requests
        return found
