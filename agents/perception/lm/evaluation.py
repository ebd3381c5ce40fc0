"""Figures of a model on rows outside its training, compared with those of guessing. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.reading import TASKS
from hmas.controller.core.lengths import LEVELS, MEDIAN

RELIABILITY_BINS = 10


def task_figures(probabilities: NDArray[np.float64], truth: NDArray[np.int64], trained_on: Sequence[int]) -> dict[str, Any]:
    """Returns accuracy, macro-F1 over the classes that occur, expected calibration error, and the majority class's accuracy.

    Args:
        probabilities: [rows, tasks].
        truth: Task of each row.
        trained_on: Tasks of the training rows, which define the majority.
    """
    chosen = probabilities.argmax(axis=1)
    majority = Counter(trained_on).most_common(1)[0][0]
    return {
        "rows": len(truth),
        "accuracy": _round((chosen == truth).mean()),
        "macro_f1": _round(np.mean([_f1(chosen == task, truth == task) for task in sorted(set(truth.tolist()))])),
        "ece": _round(calibration_error(probabilities, truth)),
        "majority_accuracy": _round((truth == majority).mean()),
        "chance_accuracy": _round(1 / len(TASKS)),
        "recall": {TASKS[task].value: _round((chosen[truth == task] == task).mean()) for task in sorted(set(truth.tolist()))},
    }


def calibration_error(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Expected calibration error over ten equally wide bins of confidence (Naeini et al. 2015)."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    which = np.minimum((confidence * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    gaps = [
        abs(confidence[which == index].mean() - right[which == index].mean()) * (which == index).mean() for index in set(which.tolist())
    ]
    return float(sum(gaps))


def length_figures(log_quantiles: NDArray[np.float64], tokens: NDArray[np.float64], trained_on: Sequence[int]) -> dict[str, Any]:
    """Returns coverage of every level, pinball loss of the log length and MAE of the median, beside those of the training quantiles.

    Args:
        log_quantiles: [rows, levels].
        tokens: Output length of each row.
        trained_on: Lengths of the training rows.
    """
    prior = np.quantile(np.log(np.asarray(trained_on, dtype=float)), LEVELS)
    logs = np.log(tokens)
    return {
        "rows": len(tokens),
        "coverage": {f"{level:g}": _round((logs <= log_quantiles[:, index]).mean()) for index, level in enumerate(LEVELS)},
        "pinball_log": _round(pinball(log_quantiles, logs)),
        "pinball_log_of_training_quantiles": _round(pinball(np.broadcast_to(prior, log_quantiles.shape), logs)),
        "mae_tokens": _round(np.abs(np.exp(log_quantiles[:, MEDIAN]) - tokens).mean()),
        "mae_tokens_of_training_median": _round(np.abs(np.exp(prior[MEDIAN]) - tokens).mean()),
    }


def pinball(quantiles: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Returns the mean pinball loss over rows and levels; lower means better quantiles."""
    gap = truth[:, None] - quantiles
    levels = np.asarray(LEVELS)
    return float(np.maximum(levels * gap, (levels - 1) * gap).mean())


def _f1(chosen: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    both = int((chosen & right).sum())
    return 2 * both / max(1, int(chosen.sum()) + int(right.sum()))


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)
