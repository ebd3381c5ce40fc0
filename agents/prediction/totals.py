"""Quantiles of a request's total service time, from those of its output length and of its cost. Pure."""

import numpy as np
from numpy.typing import NDArray

from controller.core.lengths import LEVELS, MEDIAN, P90
from controller.core.messages import RequestFeatures

P10 = LEVELS.index(0.1)
MOST_MS = 86_400_000.0

Numbers = NDArray[np.float64]


def total_quantiles(features: RequestFeatures, middle: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Quantiles 0.1, 0.5 and 0.9 of dispatch to end, milliseconds, shape (instances, 3); they rise, and more output never means less time.

    T = ttft + tpot * (L - 1). Length and cost err independently, so the squares of their logarithmic distances from the median add up.

    Args:
        features: What perception says of its length.
        middle: Medians of TTFT and TPOT, milliseconds, shape (instances, 2).
        low: Logarithms of the quantile 0.1 over these.
        high: Likewise of 0.9.
    """
    short, usual, long = lengths(features)
    ttft, tpot = middle[:, 0], middle[:, 1]
    at_median = ttft + tpot * (usual - 1.0)
    answer = np.empty((len(middle), 3))
    answer[:, 1] = at_median
    share = np.stack([ttft, tpot * (usual - 1.0)], axis=-1) / at_median[:, None]
    for column, length, logs, sign in ((0, short, low, -1.0), (2, long, high, 1.0)):
        by_length = np.log((ttft + tpot * (length - 1.0)) / at_median)
        by_cost = np.sum(share * logs, axis=-1)
        answer[:, column] = at_median * np.exp(sign * np.hypot(by_length, by_cost))
    return np.minimum(MOST_MS, answer)


def lengths(features: RequestFeatures) -> tuple[float, float, float]:
    """Output lengths at 0.1, 0.5 and 0.9, at least one token and rising; without quantiles the median and what is told of the 90 %."""
    usual = max(1.0, features.output_tokens)
    told = features.output_quantiles
    if len(told) != len(LEVELS):
        return max(1.0, usual * usual / max(usual, features.output_tokens_p90)), usual, max(usual, features.output_tokens_p90)
    usual = max(1.0, told[MEDIAN])
    return max(1.0, min(usual, told[P10])), usual, max(usual, told[P90])
