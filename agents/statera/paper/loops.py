"""Algorithm 2 (C) as printed: band tracking by a token budget (inner loop) and a concurrency cap (outer loop). Pure.

The paper prints no step sizes. They are shares of the maxima here, so that one pair serves engines of any size.
"""

from collections.abc import Sequence

ETA_BUDGET = 0.1
"""eta_B: tokens per unit of error, as a share of B_max. `ETA_N_RUN`: eta_N, sequences per unit of error, as a share of N_max."""
ETA_N_RUN = 0.1


def smoothed(values: Sequence[float]) -> float:
    """The average over a window: u_t from utilizations, and e_t averaged from errors; 0 for an empty window."""
    return sum(values) / len(values) if values else 0.0


def next_budget(budget: float, error: float, *, eta: float, low: float, high: float) -> float:
    """Line 11, the inner loop: B <- Proj[B_min, B_max](B - eta_B e_t)."""
    return max(low, min(high, budget - eta * error))


def is_saturated(budget: float, mean_error: float, *, low: float, high: float) -> bool:
    """Whether the inner loop can go no further the way that the error asks for (3.4.2): only then does the outer loop act."""
    return budget <= low if mean_error > 0.0 else budget >= high


def next_n_run(n_run: float, mean_error: float, *, eta: float, low: float, high: float, saturated: bool) -> float:
    """Lines 12 and 13, the outer loop: N <- Proj[N_min, N_max](N - eta_N mean(e)), while the inner loop is saturated."""
    return max(low, min(high, n_run - eta * mean_error)) if saturated else n_run
