"""Arrival times: Poisson, and bursts as an inhomogeneous Poisson process that alternates between a high and a low rate (H-MAS Eq. 13)."""

from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

Times = npt.NDArray[np.float64]
Positive = Annotated[float, Meta(gt=0)]


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

    A unit-rate Poisson process is stretched by the inverse of the cumulative rate. This is exact, and another rate keeps the random draws,
    so two loads from one seed are the same arrivals at different density.

    Raises:
        ValueError: The factors' mean is not 1, so the mean rate would be wrong.
    """
    edges, cumulative = cumulative_rate(spec)
    return stretched(edges, cumulative, rng)


def stretched(edges: Times, cumulative: Times, rng: np.random.Generator) -> Times:
    """Arrival times of an inhomogeneous Poisson process, ascending.

    Args:
        edges: Ascending times in seconds.
        cumulative: Expected number of arrivals up to each edge, from 0, not falling; linear in between.
        rng: The random generator.
    """
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


def cumulative_rate(spec: ArrivalSpec) -> tuple[Times, Times]:
    """Edges of the intervals of constant rate, in seconds, and the expected number of arrivals up to each edge."""
    if spec.process == "poisson":
        return np.array([0.0, spec.duration_s]), np.array([0.0, spec.duration_s * spec.mean_rps])
    if abs(spec.high + spec.low - 2.0) > 1e-6:
        raise ValueError(f"high + low must be 2 so that the mean rate holds; got high={spec.high} and low={spec.low}")
    half = spec.period_s / 2.0
    edges = np.append(np.arange(0.0, spec.duration_s, half), spec.duration_s)
    rates = np.where(np.arange(len(edges) - 1) % 2 == 0, spec.high, spec.low) * spec.mean_rps
    return edges, np.concatenate(([0.0], np.cumsum(np.diff(edges) * rates)))
