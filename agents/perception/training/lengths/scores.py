"""How good stated length quantiles are, against the lengths that came. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau  # type: ignore[import-untyped]  # it ships no types

from hmas.controller.core.lengths import LEVELS, MEDIAN

Floats = NDArray[np.float64]

PAPER_MAPE = 0.124
"""Of H-MAS Table 5, on data that the paper does not describe."""
LEAST_ROWS = 50
"""Rows below which a group is not judged on its own."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Figures over a set of rows; the point forecast is the stated median.

    Attributes:
        rows: Answers judged.
        coverage: By level, share of lengths at or below the stated quantile.
        worst_gap: Largest distance of `coverage` from its level.
        pinball: Mean pinball loss of the log length over the levels.
        kendall_tau: Rank correlation (tau-b) of stated medians and lengths; 0 where all are alike.
        mae_tokens: Mean absolute error in tokens.
        mae_log: The same of natural logarithms.
        median_ape, mape: Median and mean of the absolute error over the true length.
    """

    rows: int
    coverage: tuple[float, ...]
    worst_gap: float
    pinball: float
    kendall_tau: float
    mae_tokens: float
    mae_log: float
    median_ape: float
    mape: float


def score(quantiles: Floats, lengths: Floats) -> Score:
    """Judges stated quantiles.

    Args:
        quantiles: Of the log length, shape (rows, levels), ascending in a row.
        lengths: Logs of the lengths that came, shape (rows,).
    """
    levels = np.array(LEVELS)
    miss = lengths[:, None] - quantiles
    coverage = np.mean(miss <= 1e-9, axis=0)
    middle = quantiles[:, MEDIAN]
    told, came = np.exp(middle), np.exp(lengths)
    relative = np.abs(told - came) / came
    tau = float(kendalltau(middle, lengths).statistic) if len(lengths) > 1 else 0.0
    return Score(
        rows=len(lengths),
        coverage=tuple(round(float(share), 4) for share in coverage),
        worst_gap=round(float(np.max(np.abs(coverage - levels))), 4),
        pinball=_rounded(np.mean(np.maximum(levels * miss, (levels - 1.0) * miss))),
        kendall_tau=_rounded(tau) if np.isfinite(tau) else 0.0,
        mae_tokens=_rounded(np.mean(np.abs(told - came))),
        mae_log=_rounded(np.mean(np.abs(middle - lengths))),
        median_ape=_rounded(np.median(relative)),
        mape=_rounded(np.mean(relative)),
    )


def by_group(quantiles: Floats, lengths: Floats, groups: NDArray[Any]) -> dict[str, Score]:
    """Scores of each group with `LEAST_ROWS` rows or more, largest first."""
    names, counts = np.unique(groups, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    kept = [names[place] for place in order if counts[place] >= LEAST_ROWS]
    return {str(name): score(quantiles[groups == name], lengths[groups == name]) for name in kept}


def _rounded(value: Any) -> float:
    return float(f"{float(value):.5g}")


def weighted_quantile(values: Sequence[float] | Floats, weights: Sequence[float] | Floats, level: float) -> float:
    """The value below which this share of the weight lies."""
    held = np.asarray(values, np.float64)
    order = np.argsort(held)
    heaped = np.cumsum(np.asarray(weights, np.float64)[order])
    return float(held[order][np.searchsorted(heaped, level * heaped[-1])])
