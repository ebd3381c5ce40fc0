"""Temperatures that calibrate a model's confidence (Guo et al. 2017, "On Calibration of Modern Neural Networks"). Pure."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]  # it ships no types

from hmas.agents.perception.lm.answers import softened

LOWEST, HIGHEST = 0.2, 10.0
"""Bounds of a temperature: beyond them the model is wrong, not its confidence."""
ENOUGH = 20
"""With fewer rows nothing is fitted."""


def fitted_temperature(logits: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Returns the temperature with the least negative log-likelihood on rows outside the training; 1 if there are too few.

    Args:
        logits: [rows, choices].
        truth: Index of the right choice of each row.
    """
    if len(truth) < ENOUGH:
        return 1.0

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(softened(logits, float(np.exp(log_temperature))), truth)

    found = minimize_scalar(loss, bounds=(np.log(LOWEST), np.log(HIGHEST)), method="bounded")
    return round(float(np.exp(found.x)), 4)


def negative_log_likelihood(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Returns the mean over the rows, in nats."""
    right = probabilities[np.arange(len(truth)), truth]
    return float(-np.log(np.maximum(right, 1e-12)).mean())
