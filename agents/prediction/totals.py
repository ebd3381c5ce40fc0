"""Computes quantiles of a request's total service time from those of its output length and its cost. Pure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hmas.controller.core.lengths import LEVELS, MEDIAN, P90
from hmas.controller.core.messages import RequestFeatures

P10 = LEVELS.index(0.1)
MOST_MS = 86_400_000.0

Numbers = NDArray[np.float64]


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
