"""Learning from an answer that was cut off at a cap: it would have been longer by an unknown amount. Pure."""

import math
from collections.abc import Sequence

import numpy as np

from hmas.controller.core.lengths import LEVELS


def share_below(stated: Sequence[float], length: float, *, censored: bool) -> list[float]:
    """By level, whether the length was at most the predicted quantile; behind a cap, the probability of that under the prediction."""
    if not censored:
        return [1.0 if length <= value else 0.0 for value in stated]
    passed = float(np.interp(length, stated, LEVELS, left=0.0))
    return [max(0.0, (level - passed) / (1.0 - passed)) if length <= value else 0.0 for level, value in zip(LEVELS, stated, strict=True)]


def beyond(standing: float) -> tuple[float, float]:
    """Returns the mean of a standard normal beyond `standing`, and the share of its variance that this knowledge removes (Tobit)."""
    if standing > 6.0:
        return standing, 1.0
    density = math.exp(-0.5 * standing * standing) / math.sqrt(2.0 * math.pi)
    tail = 0.5 * math.erfc(standing / math.sqrt(2.0))
    mean = density / max(tail, 1e-300)
    return mean, min(1.0, max(0.0, mean * (mean - standing)))
