"""Point processes of arrivals: renewal processes. Poisson and its inhomogeneous forms are in `hmas.loadgen.arrivals`."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.loadgen.arrivals import ArrivalSpec, arrival_times, stretched
from hmas.loadgen.requests import Floats
from hmas.workloads.options import MAX_ROWS

Family = Literal["exponential", "gamma", "weibull"]
CV_MIN, CV_MAX = 0.05, 100.0
_CHUNK = 8192

Gaps = Callable[[int, np.random.Generator], Floats]


def poisson_times(rate: float, duration_s: float, rng: np.random.Generator) -> Floats:
    """A Poisson process: the same draws at another rate are the same arrivals at another density."""
    check_size(rate * duration_s)
    return arrival_times(ArrivalSpec(mean_rps=rate, duration_s=duration_s, process="poisson"), rng)


def piecewise_times(edges_s: Sequence[float] | Floats, rates: Sequence[float] | Floats, rng: np.random.Generator) -> Floats:
    """An inhomogeneous Poisson process whose rate is constant between edges.

    Args:
        edges_s: Ascending times, one more than the rates.
        rates: Requests per second, 0 or more.
        rng: The random generator.
    """
    edges = np.asarray(edges_s, dtype=float)
    cumulative = np.concatenate(([0.0], np.cumsum(np.diff(edges) * np.asarray(rates, dtype=float))))
    check_size(float(cumulative[-1]))
    return stretched(edges, cumulative, rng)


def check_size(expected: float) -> None:
    """Refuses a workload that would not fit into memory.

    Raises:
        TraceError: More rows than allowed are expected.
    """
    if expected > MAX_ROWS:
        raise TraceError(f"rate and duration make {expected:.3g} requests; allowed: up to {MAX_ROWS:,}")


def renewal_times(family: Family, rate: float, cv: float, duration_s: float, rng: np.random.Generator) -> Floats:
    """A stationary renewal process: independent gaps of mean `1 / rate` with a given coefficient of variation.

    The first gap is the rest of a gap in progress (length-biased, cut at a uniform place), so the expected count is exactly
    `rate * duration_s`; starting with a whole gap would change it by `(cv^2 - 1) / 2` requests.

    Args:
        family: Distribution of the gaps; `exponential` has the CV 1 for any `cv`.
        rate: Requests per second, more than 0.
        cv: Coefficient of variation of the gaps, 0.05 to 100.
        duration_s: Length of the process.
        rng: The random generator.
    """
    check_size(rate * duration_s)
    whole, biased = gap_law(family, cv)
    scale = 1.0 / rate
    reached = float(biased(1, rng)[0]) * float(rng.random()) * scale
    parts = [np.array([reached])]
    while reached < duration_s:
        part = reached + np.cumsum(whole(_CHUNK, rng)) * scale
        parts.append(part)
        reached = float(part[-1])
        if sum(map(len, parts)) > 2 * MAX_ROWS:
            raise TraceError(f"cv is {cv}: a burst of more than {2 * MAX_ROWS:,} requests was drawn; allowed: a smaller cv or rate")
    times: Floats = np.concatenate(parts)
    return times[times < duration_s]


def gap_law(family: Family, cv: float) -> tuple[Gaps, Gaps]:
    """Samplers of gaps with mean 1, plain and length-biased (chosen in proportion to their length).

    Raises:
        TraceError: The CV is out of range.
    """
    if not CV_MIN <= cv <= CV_MAX:
        raise TraceError(f"cv is {cv}; allowed: {CV_MIN} to {CV_MAX}")
    if family == "weibull":
        shape = weibull_shape(cv)
        scale = 1.0 / math.gamma(1.0 + 1.0 / shape)
        return (
            lambda count, rng: scale * rng.weibull(shape, count),
            lambda count, rng: scale * rng.gamma(1.0 + 1.0 / shape, 1.0, count) ** (1.0 / shape),
        )
    # The exponential distribution is the gamma distribution of shape 1.
    shape = 1.0 if family == "exponential" else 1.0 / cv**2
    return lambda count, rng: rng.gamma(shape, 1.0 / shape, count), lambda count, rng: rng.gamma(shape + 1.0, 1.0 / shape, count)


def weibull_shape(cv: float) -> float:
    """The Weibull shape whose coefficient of variation is `cv`, by bisection."""
    low, high = 0.05, 100.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        log_ratio = math.lgamma(1.0 + 2.0 / middle) - 2.0 * math.lgamma(1.0 + 1.0 / middle)
        if log_ratio > math.log1p(cv**2):
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
