"""How good a classifier of prompts is: accuracy, F1, calibration, confusion. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hmas.agents.perception.reading import TASKS

BINS = 15
"""Equal-width bins of the confidence in the reliability diagram and the expected calibration error (Guo et al., 2017)."""

Numbers = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


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


def _class(chosen: Labels, labels: Labels, number: int) -> dict[str, float]:
    hits = int(((chosen == number) & (labels == number)).sum())
    guessed, actual = int((chosen == number).sum()), int((labels == number).sum())
    precision = hits / guessed if guessed else 0.0
    recall = hits / actual if actual else 0.0
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return {"n": actual, "precision": precision, "recall": recall, "f1": f1}
