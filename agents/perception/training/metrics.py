"""How good a reader is, task types and length quantiles, and the temperature that calibrates it. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau  # type: ignore[import-untyped]  # it ships no types

from hmas.agents.perception.reading import TASKS
from hmas.controller.core.lengths import LEVELS, MEDIAN

BINS = 15
"""Equal-width bins of the confidence in the reliability diagram and the expected calibration error (Guo et al., 2017)."""

ENOUGH = 20
"""With fewer rows no temperature is fitted."""

Numbers = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


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


def report(probabilities: Numbers, labels: Labels, sources: Sequence[str]) -> dict[str, Any]:
    """Everything that `hmas eval perception` says of a classifier.

    Args:
        probabilities: Rows x `TASKS`. A row of zeros is no answer: it counts as wrong, with no confidence.
        labels: Places in `TASKS`.
        sources: Where each row comes from.
    """
    confidence = probabilities.max(axis=1)
    chosen = np.where(confidence > 0, probabilities.argmax(axis=1), -1)
    right = chosen == labels
    classes = {task.value: _class(chosen, labels, number) for number, task in enumerate(TASKS)}
    f1 = [entry["f1"] for entry in classes.values() if entry["n"]]
    bins = reliability(confidence, right)
    confusion = {
        TASKS[label].value: {
            TASKS[guess].value if guess >= 0 else "none": int(((labels == label) & (chosen == guess)).sum())
            for guess in range(-1, len(TASKS))
            if ((labels == label) & (chosen == guess)).any()
        }
        for label in sorted(set(labels.tolist()))
    }
    by_source = {}
    for source in sorted(set(sources)):
        mask = np.array([entry == source for entry in sources])
        by_source[source] = {"n": int(mask.sum()), "accuracy": float(right[mask].mean())}
    return {
        "n": len(labels),
        "accuracy": float(right.mean()),
        "macro_f1": float(np.mean(f1)),
        "ece": expected_calibration_error(bins),
        "classes": classes,
        "sources": by_source,
        "confusion": confusion,
        "reliability": bins,
    }


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a report that belong on a card."""
    return {
        **{name: round(found[name], 4) for name in ("accuracy", "macro_f1", "ece")},
        "n": found["n"],
        "f1": {name: round(entry["f1"], 3) for name, entry in found["classes"].items() if entry["n"]},
    }


def reliability(confidence: Numbers, right: npt.NDArray[np.bool_]) -> list[dict[str, float]]:
    """The bins of the reliability diagram that hold anything: rows, mean confidence, accuracy."""
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    found = []
    for number in range(BINS):
        mask = place == number
        if mask.any():
            found.append({"n": int(mask.sum()), "confidence": float(confidence[mask].mean()), "accuracy": float(right[mask].mean())})
    return found


def expected_calibration_error(bins: Sequence[dict[str, float]]) -> float:
    """Mean distance of confidence and accuracy over the bins, weighted by their rows."""
    total = sum(entry["n"] for entry in bins)
    return sum(entry["n"] * abs(entry["confidence"] - entry["accuracy"]) for entry in bins) / total if total else 0.0


def score(quantiles: Numbers, lengths: Numbers) -> Score:
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


def temperature_of(logits: Numbers, labels: Labels) -> float:
    """Temperature with the least cross-entropy on rows outside of the training, on a grid from 0.2 to 10; 1 with less than `ENOUGH` rows.

    Logits have the shape (rows, choices). See Guo et al., "On Calibration of Modern Neural Networks", 2017.
    """
    if len(labels) < ENOUGH:
        return 1.0
    # Beyond the ends it is the model that is wrong, not its confidence.
    grid = np.concatenate((np.geomspace(0.2, 0.4, 28)[:-1], np.geomspace(0.4, 4.0, 93), np.geomspace(4.0, 10.0, 38)[1:]))
    losses = []
    for value in grid:
        scaled = logits / value
        top = scaled.max(axis=1, keepdims=True)
        log_sum = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=1))
        losses.append(float((log_sum - scaled[np.arange(len(labels)), labels]).mean()))
    return float(grid[int(np.argmin(losses))])


def _class(chosen: Labels, labels: Labels, number: int) -> dict[str, float]:
    hits = int(((chosen == number) & (labels == number)).sum())
    guessed, actual = int((chosen == number).sum()), int((labels == number).sum())
    precision = hits / guessed if guessed else 0.0
    recall = hits / actual if actual else 0.0
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return {"n": actual, "precision": precision, "recall": recall, "f1": f1}


def _rounded(value: Any) -> float:
    return float(f"{float(value):.5g}")
