"""The input of the regressor, self-contained so that the trees can run outside of the agent's event loop, and what follows from its output.

Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.ranges import RangeCounter
from hmas.controller.core.lengths import LEVELS, MEDIAN, P90
from hmas.controller.core.messages import RequestFeatures

Numbers = NDArray[np.float64]

TARGETS = ("ttft", "tpot")
LOG_LIMIT = 2.0
"""Limit of the regressor's output: a factor of e^2 either way; beyond lies extrapolation."""
DEFAULT_SPREAD = 0.35
"""Logarithm of the outer quantiles over the median without a regressor."""
P10 = LEVELS.index(0.1)
MOST_MS = 86_400_000.0
"""Largest total time that is stated: a day."""


class Regressor(Protocol):
    """The learnt part of the model."""

    def log_quantiles(self, rows: NDArray[np.float32], names: NDArray[np.object_]) -> Numbers:
        """Returns quantiles (0.1, 0.5, 0.9) of the logarithms of actual over analytic TTFT and TPOT for each row.

        Rows hold `FEATURES`, names `CATEGORIES`. Shape (rows, 2, 3), rising along the last axis.
        """
        ...

    @property
    def accepted(self) -> Mapping[str, float]:
        """Mean absolute logarithmic error on held-out data, by target."""
        ...

    @property
    def ranges(self) -> RangeCounter | None:
        """Ranges of `FEATURES` in training, to which `log_quantiles` clips; None if they are not known and nothing is clipped."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Some requests on all candidates at one moment. It refers to nothing that the model changes later.

    Attributes:
        named: The candidates.
        formula: Results of the formula in milliseconds, shape (requests, candidates, 2).
        rows, names: Input of the regressor, request by request.
        regressor: The regressor active then; None for none.
    """

    batch: Sequence[RequestFeatures]
    named: Sequence[str]
    formula: Numbers
    rows: NDArray[np.float32]
    names: NDArray[np.object_]
    regressor: Regressor | None

    def quantiles(self) -> Numbers:
        """Runs the learnt part, shape (requests, candidates, 2, 3): the slow part, for any thread, one at a time."""
        return log_quantiles(self.regressor, self.rows, self.names).reshape(*self.formula.shape, 3)


def log_quantiles(regressor: Regressor | None, rows: NDArray[np.float32], names: NDArray[np.object_]) -> Numbers:
    """Returns the regressor's quantiles within its limits; without a regressor, the formula's value with a default spread."""
    if regressor is None:
        said = np.zeros((len(rows), len(TARGETS), 3))
        said[..., 0], said[..., 2] = -DEFAULT_SPREAD, DEFAULT_SPREAD
        return said
    return np.clip(regressor.log_quantiles(rows, names), -LOG_LIMIT, LOG_LIMIT)


def total_quantiles(batch: Sequence[RequestFeatures], middle: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Returns quantiles 0.1, 0.5 and 0.9 of dispatch to end in milliseconds; they rise, and more output never means less time.

    T = ttft + tpot * (L - 1). Errors of length and cost are independent, so the squares of their logarithmic distances from the median add
    up.

    Args:
        batch: Perception's features of the requests, with their lengths.
        middle: Medians of TTFT and TPOT, milliseconds, shape (requests, instances, 2).
        low: Logarithms of the quantile 0.1 over these.
        high: Likewise of 0.9.

    Returns:
        Shape (requests, instances, 3).
    """
    steps = np.array([lengths(features) for features in batch])[:, None, :] - 1.0
    ttft, tpot = middle[..., :1], middle[..., 1:]
    answer = ttft + tpot * steps
    usual = answer[..., 1:2].copy()
    first = ttft / usual
    for column, logs, sign in ((0, low, -1.0), (2, high, 1.0)):
        by_length = np.log(answer[..., column] / usual[..., 0])
        by_cost = first[..., 0] * logs[..., 0] + (1.0 - first[..., 0]) * logs[..., 1]
        answer[..., column] = usual[..., 0] * np.exp(sign * np.hypot(by_length, by_cost))
    return np.minimum(MOST_MS, answer)


def lengths(features: RequestFeatures) -> tuple[float, float, float]:
    """Returns output lengths at 0.1, 0.5 and 0.9, rising from at least one token; without quantiles, from the median and the 90 %."""
    usual = max(1.0, features.output_tokens)
    told = features.output_quantiles
    if len(told) != len(LEVELS):
        return max(1.0, usual * usual / max(usual, features.output_tokens_p90)), usual, max(usual, features.output_tokens_p90)
    usual = max(1.0, told[MEDIAN])
    return max(1.0, min(usual, told[P10])), usual, max(usual, told[P90])
