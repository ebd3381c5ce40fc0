"""Least squares for time coefficients: non-negative, on relative errors, and robust against outliers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls  # type: ignore[import-untyped]  # it ships no types

Floats = NDArray[np.float64]

_ROUNDS = 30


def robust_nnls(design: Floats, measured: Floats, *, knee: float = 0.05) -> Floats:
    """Non-negative coefficients `x` with which `design @ x` is close to `measured`.

    Minimises the sum over the rows of the soft-L1 loss `2 (sqrt(1 + (r / knee)^2) - 1)` of the relative residual `r`, by reweighted
    non-negative least squares. The loss is quadratic for residuals below `knee` and linear beyond, so that a row that was measured while
    the machine stalled changes the result little.

    Args:
        design: (rows, coefficients), finite.
        measured: (rows,), more than 0.
        knee: Relative residual above which a row counts as an outlier.

    Raises:
        ValueError: Shapes do not fit, a value is not finite, or a measured value is not more than 0.
    """
    if design.ndim != 2 or measured.shape != (design.shape[0],):
        raise ValueError(f"design {design.shape} and measured {measured.shape}: allowed are (rows, coefficients) and (rows,)")
    if not (np.isfinite(design).all() and np.isfinite(measured).all() and (measured > 0).all()):
        raise ValueError("design and measured must be finite, measured more than 0")
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    relative = design / scale / measured[:, None]
    weights = np.ones(len(measured))
    solution = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        found: Any = nnls(relative * weights[:, None], weights)[0]
        residual = relative @ found - 1.0
        weights = (1.0 + (residual / knee) ** 2) ** -0.25
        if np.allclose(found, solution, rtol=1e-6, atol=1e-12):
            break
        solution = found
    return np.asarray(found / scale, dtype=np.float64)
