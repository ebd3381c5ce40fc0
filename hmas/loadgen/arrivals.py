"""Arrival times: Poisson, Poisson with a rate that changes (bursts as in H-MAS Eq. 13), and renewal processes with a given CV."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from hmas.controller.core.errors import TraceError

Times = npt.NDArray[np.float64]
Positive = Annotated[float, Meta(gt=0)]
MAX_ROWS = 20_000_000
"""Most rows of one workload: 800 MB of columns."""
CV_MIN, CV_MAX = 0.05, 100.0
_CHUNK = 8192


class ArrivalSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arrival process.

    Attributes:
        mean_rps: Mean rate over whole periods, requests per second.
        duration_s: Length of the arrivals.
        process: `poisson`: constant rate; `bursty`: half of each period at `high`, half at `low` times the mean.
        period_s, high, low: Shape of the bursts. H-MAS's stress test uses 20 s, 1.8 and 0.2; the factors' mean must be 1.
    """

    mean_rps: Positive
    duration_s: Positive
    process: Literal["poisson", "bursty"] = "bursty"
    period_s: Positive = 20.0
    high: Annotated[float, Meta(ge=0)] = 1.8
    low: Annotated[float, Meta(ge=0)] = 0.2


def arrival_times(spec: ArrivalSpec, rng: np.random.Generator) -> Times:
    """Ascending arrival times in seconds, from 0 to `duration_s`.

    Raises:
        ValueError: The factors' mean is not 1, so the mean rate would be wrong.
    """
    edges, cumulative = cumulative_rate(spec)
    return _stretched(edges, cumulative, rng)


def cumulative_rate(spec: ArrivalSpec) -> tuple[Times, Times]:
    """Edges of the intervals of constant rate, in seconds, and the expected number of arrivals up to each edge."""
    if spec.process == "poisson":
        return _cumulated([0.0, spec.duration_s], [spec.mean_rps])
    if abs(spec.high + spec.low - 2.0) > 1e-6:
        raise ValueError(f"high + low must be 2 so that the mean rate holds; got high={spec.high} and low={spec.low}")
    edges = np.append(np.arange(0.0, spec.duration_s, spec.period_s / 2.0), spec.duration_s)
    return _cumulated(edges, np.where(np.arange(len(edges) - 1) % 2 == 0, spec.high, spec.low) * spec.mean_rps)


def poisson_times(rate: float, duration_s: float, rng: np.random.Generator) -> Times:
    """A Poisson process of a constant rate, requests per second; otherwise as `piecewise_times`."""
    return piecewise_times([0.0, duration_s], [rate], rng)


def piecewise_times(edges_s: Sequence[float] | Times, rates: Sequence[float] | Times, rng: np.random.Generator) -> Times:
    """A Poisson process whose rate is constant between edges: the same draws at other rates are the same arrivals at another density.

    Edges are ascending times, one more than the rates in requests per second, which may be 0.

    Raises:
        TraceError: More than `MAX_ROWS` requests are expected.
    """
    edges, cumulative = _cumulated(edges_s, rates)
    check_size(float(cumulative[-1]))
    return _stretched(edges, cumulative, rng)


def renewal_times(rate: float, cv: float, duration_s: float, rng: np.random.Generator) -> Times:
    """A stationary renewal process: independent gamma gaps of mean `1 / rate` with a given coefficient of variation.

    The first gap is the rest of a gap in progress (length-biased, cut at a uniform place), so the expected count is exactly
    `rate * duration_s`; starting with a whole gap would change it by `(cv^2 - 1) / 2` requests.

    The rate, in requests per second, is above 0; the coefficient of variation is 0.05 to 100.

    Raises:
        TraceError: The CV is out of range, or too many requests are expected or drawn.
    """
    check_size(rate * duration_s)
    if not CV_MIN <= cv <= CV_MAX:
        raise TraceError(f"cv is {cv}; allowed: {CV_MIN} to {CV_MAX}")
    shape, scale = 1.0 / cv**2, 1.0 / rate
    # A gap in progress is a gap chosen in proportion to its length.
    reached = float(rng.gamma(shape + 1.0, 1.0 / shape, 1)[0]) * float(rng.random()) * scale
    parts = [np.array([reached])]
    while reached < duration_s:
        part = reached + np.cumsum(rng.gamma(shape, 1.0 / shape, _CHUNK)) * scale
        parts.append(part)
        reached = float(part[-1])
        if sum(map(len, parts)) > 2 * MAX_ROWS:
            raise TraceError(f"cv is {cv}: a burst of more than {2 * MAX_ROWS:,} requests was drawn; allowed: a smaller cv or rate")
    times: Times = np.concatenate(parts)
    return times[times < duration_s]


def check_size(expected: float) -> None:
    """Refuses a workload that would not fit into memory.

    Raises:
        TraceError: More than `MAX_ROWS` requests are expected.
    """
    if expected > MAX_ROWS:
        raise TraceError(f"rate and duration make {expected:.3g} requests; allowed: up to {MAX_ROWS:,}")


def _cumulated(edges_s: Sequence[float] | Times, rates: Sequence[float] | Times) -> tuple[Times, Times]:
    """The edges, and the expected number of arrivals up to each of them."""
    edges = np.asarray(edges_s, dtype=float)
    return edges, np.concatenate(([0.0], np.cumsum(np.diff(edges) * np.asarray(rates, dtype=float))))


def _stretched(edges: Times, cumulative: Times, rng: np.random.Generator) -> Times:
    """A unit-rate Poisson process stretched by the inverse of the cumulative rate. This is exact, and another rate keeps the draws."""
    total = cumulative[-1]
    drawn: list[Times] = []
    reached = 0.0
    while reached < total:
        part = reached + np.cumsum(rng.exponential(1.0, size=256))
        drawn.append(part)
        reached = float(part[-1])
    marks = np.concatenate(drawn)
    times: Times = np.interp(marks[marks < total], cumulative, edges)
    return times
