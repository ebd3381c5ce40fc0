"""Bursts, drift of the mix, lengths and slow changes of a trace (H-MAS section 2). Pure.

The paper gives figures of its own Azure trace without saying how each was taken. What is said here of a figure is this project's reading.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MINUTE_S = 60.0
BURST_S = 5
"""Seconds over which the paper counts additional requests."""
DRIFT_MINUTES = 5
"""Minutes within which the paper takes the range of the share of long requests."""
LONG_TOKENS = 2048
"""A prompt with more tokens is long: the lower end of the paper's long contexts."""
FEWEST = 20
"""Requests below which a minute's share of long ones says nothing."""
DISPERSION_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""Lengths of the windows in which the dispersion of counts is taken."""
CONTEXTS = (0.0, 512.0, 2048.0, 4096.0)
"""Lower ends of the paper's classes of context lengths, tokens; the last has no upper end."""
Floats = NDArray[np.float64]


def counts(at_s: Floats, span_s: float, window_s: float) -> Floats:
    """Arrivals in each whole window of a trace of `span_s` seconds."""
    whole = int(span_s / window_s)
    places = (at_s / window_s).astype(np.int64)
    found: Floats = np.bincount(places[places < whole], minlength=whole).astype(np.float64)
    return found


def bursts(at_s: Floats, span_s: float) -> dict[str, float]:
    """Arrivals at the scale of seconds.

    Returns:
        `requests`, `span_s`, `mean_rps`; `peak_rps` (most in a second); `step_rps` (largest change from a second to the next); `extra`
        (most requests in five seconds beyond those of the mean rate); `gap_cv` (coefficient of variation of the gaps); `dispersion`
        (variance over mean of the counts of a second; 1 is Poisson).
    """
    seconds = counts(at_s, span_s, 1.0)
    mean = len(at_s) / span_s
    gaps = np.diff(at_s)
    sums = np.convolve(seconds, np.ones(BURST_S), "valid") if len(seconds) >= BURST_S else np.array([seconds.sum()])
    return {
        "requests": float(len(at_s)),
        "span_s": span_s,
        "mean_rps": mean,
        "peak_rps": float(seconds.max(initial=0.0)),
        "step_rps": float(np.abs(np.diff(seconds)).max(initial=0.0)),
        "extra": float(sums.max() - BURST_S * mean),
        "gap_cv": float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0.0 else 0.0,
        "dispersion": dispersion(at_s, span_s, 1.0),
    }


def dispersion(at_s: Floats, span_s: float, window_s: float) -> float:
    """Variance over mean of the counts in windows; 1 for a Poisson process at any length of the windows, 0 without a request."""
    found = counts(at_s, span_s, window_s)
    mean = float(found.mean()) if len(found) else 0.0
    return float(found.var()) / mean if mean else 0.0


def long_shares(at_s: Floats, prompt_tokens: Floats, span_s: float) -> list[float | None]:
    """Share of long prompts by minute; None where there are too few requests."""
    every = counts(at_s, span_s, MINUTE_S)
    long = counts(at_s[prompt_tokens > LONG_TOKENS], span_s, MINUTE_S)
    return [float(some / all_of_it) if all_of_it >= FEWEST else None for some, all_of_it in zip(long, every, strict=True)]


def drift(at_s: Floats, prompt_tokens: Floats, output_tokens: Floats, span_s: float) -> dict[str, float]:
    """The mix at the scale of minutes.

    Returns:
        `long_range` (largest range of the share of long prompts within five minutes); `long_step` (its largest change from a minute to the
        next); `load_p95` (tokens of a minute over those of the mean minute, 95th percentile); `prompt_p50`, `prompt_p95`, `output_p50`,
        `output_p95` (tokens).
    """
    shares = long_shares(at_s, prompt_tokens, span_s)
    ranges = [0.0]
    for begin in range(len(shares)):
        known = [share for share in shares[begin : begin + DRIFT_MINUTES] if share is not None]
        ranges.append(max(known) - min(known) if known else 0.0)
    steps = [abs(b - a) for a, b in pairwise(shares) if a is not None and b is not None]
    return {
        "long_range": max(ranges),
        "long_step": max(steps, default=0.0),
        "load_p95": _load_p95(at_s, prompt_tokens + output_tokens, span_s),
        **{
            f"{name}_p{level}": float(np.percentile(values, level))
            for name, values in (("prompt", prompt_tokens), ("output", output_tokens))
            for level in (50, 95)
        },
    }


def _load_p95(at_s: Floats, tokens: Floats, span_s: float) -> float:
    whole = int(span_s / MINUTE_S)
    places = (at_s / MINUTE_S).astype(np.int64)
    kept = places < whole
    sums = np.bincount(places[kept], weights=tokens[kept], minlength=whole)
    return float(np.percentile(sums, 95) / sums.mean()) if whole and sums.mean() else 0.0


def into(edges: Sequence[float], low: Floats, high: Floats, weight: Floats) -> Floats:
    """The weights of a histogram's bins `low` to `high` in other bins, given by the lower edges; the last has no end.

    A bin that crosses an edge is divided in proportion, as if what is in it were spread evenly.
    """
    starts, ends = np.array(edges), np.array([*edges[1:], np.inf])
    overlap = np.minimum(high[:, None], ends) - np.maximum(low[:, None], starts)
    found: Floats = (weight[:, None] * np.clip(overlap, 0.0, None) / (high - low)[:, None]).sum(axis=0)
    return found


def log_edges(least: float, most: float) -> list[float]:
    """Edges half a power of two apart, from the power of two at or below `least` to that at or above `most`."""
    first, last = np.floor(np.log2(max(1.0, least))), np.ceil(np.log2(max(2.0, most)))
    found: list[float] = (2.0 ** np.arange(first, last + 0.25, 0.5)).tolist()
    return found


def heat_of(at_s: Floats, tokens: Floats, edges: Sequence[float], span_s: float, window_s: float) -> list[list[float]]:
    """Share of the requests of each whole window in each bin: one row per bin, one column per window; zeros where none came."""
    whole = int(span_s / window_s)
    grid, _, _ = np.histogram2d(tokens, at_s / window_s, bins=[np.array([*edges]), np.arange(whole + 1)])
    return columns_to_shares(grid)


def columns_to_shares(grid: Floats) -> list[list[float]]:
    """The grid with every column divided by its sum, to four digits."""
    sums = grid.sum(axis=0, keepdims=True)
    shares: list[list[float]] = np.round(np.divide(grid, sums, out=np.zeros_like(grid, dtype=np.float64), where=sums > 0.0), 4).tolist()
    return shares


def slow(windows: Mapping[float, Floats]) -> dict[str, float]:
    """Least and greatest share of the classes of `CONTEXTS` over windows of hours, by the class's place: `least_0`, `most_0` and so on.

    Args:
        windows: Requests by class, by the window's beginning in seconds.
    """
    shares = np.array([found / found.sum() for found in windows.values() if found.sum() > 0.0])
    return {
        f"{name}_{place}": float(value)
        for name, values in (("least", shares.min(axis=0)), ("most", shares.max(axis=0)))
        for place, value in enumerate(values)
    }


def percentiles(values: Floats, levels: Sequence[float] = (5, 50, 95)) -> list[float]:
    """Percentiles, rounded to whole tokens."""
    found: list[float] = np.round(np.percentile(values, levels)).tolist()
    return found
