"""Divides output lengths into bins, so that a model that picks tokens can give a whole distribution. Pure.

The bins are equally wide in the logarithm of the length: an error of 20 tokens matters at 10 tokens and not at 2,000.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hmas.controller.core.lengths import LEVELS

BINS = 20
"""Engines return the 20 likeliest tokens of a step unless started otherwise (vLLM: --max-logprobs), so more bins would be incomplete."""
LONGEST_TOKENS = 40_000
"""Upper end of the last bin; longer answers count as this long."""
LOG_EDGES: NDArray[np.float64] = np.linspace(0.0, math.log(LONGEST_TOKENS), BINS + 1)
"""Edges in natural logarithms of tokens; bin i is [edge i, edge i+1), a factor of 1.7 wide."""

_LEAST = 1e-6
"""Smallest probability of a bin, so that quantiles never jump across bins that the model left out."""


def bin_of(tokens: int) -> int:
    """Returns the bin of a length in tokens, 0 to `BINS` - 1.

    Raises:
        ValueError: The length is below 1.
    """
    if tokens < 1:
        raise ValueError(f"output_tokens is {tokens}; allowed: 1 or more")
    return min(BINS - 1, int(np.searchsorted(LOG_EDGES, math.log(tokens), side="right")) - 1)


def log_quantiles(probabilities: NDArray[np.float64] | Sequence[float]) -> tuple[float, ...]:
    """Returns quantiles of the log length at `LEVELS` from the probabilities of the bins; within a bin the log length is uniform.

    Args:
        probabilities: One per bin, not negative; they need not sum to 1.

    Raises:
        ValueError: Their number is not `BINS`, one is negative or not finite, or all are 0.
    """
    given = np.asarray(probabilities, dtype=np.float64)
    if given.shape != (BINS,) or not np.isfinite(given).all() or (given < 0).any() or given.sum() <= 0:
        raise ValueError(f"bin probabilities {given!r}; allowed: {BINS} finite numbers of 0 or more, not all 0")
    share = np.maximum(given / given.sum(), _LEAST)
    reached = np.concatenate(([0.0], np.cumsum(share / share.sum())))
    return tuple(float(value) for value in np.interp(LEVELS, reached, LOG_EDGES))
