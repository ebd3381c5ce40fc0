"""Is one policy better than another, or is it noise? Pure."""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Any, Literal

import msgspec
from scipy.stats import t as student  # type: ignore[import-untyped]  # it has no type information

CONFIDENCE = 0.95
Verdict = Literal["better", "worse", "within noise", "too few runs"]
LEAST_BLOCKS = 3
"""With fewer blocks a policy may lie on one side in all of them by mere chance."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Values of repeated runs."""

    median: float
    min: float
    max: float


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of two policies on the same workloads.

    Attributes:
        mean: Of the differences.
        half: Half the width of the mean's confidence interval, 95 % for one comparison (Student's t).
        sure_half: Likewise with 95 % for all comparisons together (Bonferroni): with many policies one of them always looks good by chance.
    """

    mean: float
    half: float
    sure_half: float

    @property
    def verdict(self) -> Verdict:
        """Whether the difference is sure, and on which side."""
        if abs(self.mean) <= self.sure_half:
            return "within noise"
        return "better" if self.mean > 0 else "worse"


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest; all 0 with no values."""
    if not values:
        return Spread(median=0.0, min=0.0, max=0.0)
    return Spread(median=median(values), min=min(values), max=max(values))


def mean_half(values: Sequence[float], comparisons: int = 1) -> tuple[float, float]:
    """Mean of values and half the width of its confidence interval; infinite with fewer than two."""
    if len(values) < 2:
        return (values[0] if values else 0.0), math.inf
    quantile = float(student.ppf(1.0 - (1.0 - CONFIDENCE) / 2.0 / max(1, comparisons), len(values) - 1))
    return fmean(values), quantile * stdev(values) / math.sqrt(len(values))


def paired(values: Sequence[float], base: Sequence[float], comparisons: int) -> Paired:
    """How far values lie above others of the same workloads, one by one."""
    differences = [value - other for value, other in zip(values, base, strict=True)]
    mean, half = mean_half(differences)
    return Paired(mean=mean, half=half, sure_half=mean_half(differences, comparisons)[1])


def twin_noise(pairs: Sequence[tuple[float, float]]) -> float:
    """How far two runs of one configuration lay apart at most, as a ratio's logarithm; infinite where there is no pair to tell by."""
    known = [abs(math.log(one / other)) for one, other in pairs if one > 0.0 and other > 0.0]
    return max(known) if known and len(known) == len(pairs) else math.inf


def judged(ratios: Sequence[float], noise: float) -> Verdict:
    """A policy by its ratios to the baseline, block by block: on one side in every block, and in the median by more than the noise."""
    logs = [math.log(ratio) if ratio > 0.0 else -math.inf for ratio in ratios]
    if len(logs) < LEAST_BLOCKS:
        return "too few runs"
    if abs(median(logs)) <= noise:
        return "within noise"
    if all(value > 0.0 for value in logs):
        return "better"
    return "worse" if all(value < 0.0 for value in logs) else "within noise"


def plain(value: Any, digits: int = 4) -> Any:
    """A result for JSON: structs to objects, floats cut, what is infinite to null."""
    value = msgspec.to_builtins(value)
    if isinstance(value, float):
        return round(value, digits) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(item, digits) for key, item in value.items()}
    return [plain(item, digits) for item in value] if isinstance(value, list) else value
