"""The input of the regressor: self-contained columns, so that the trees can run outside the agent's event loop. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.ranges import RangeCounter
from hmas.controller.core.messages import RequestFeatures

Numbers = NDArray[np.float64]

TARGETS = ("ttft", "tpot")
LOG_LIMIT = 2.0
"""Limit of the regressor's output: a factor of e^2 either way; beyond lies extrapolation."""
DEFAULT_SPREAD = 0.35
"""Logarithm of the outer quantiles over the median without a regressor."""


class Regressor(Protocol):
    """The learnt part of the model."""

    def log_quantiles(self, rows: NDArray[np.float32], names: NDArray[np.object_]) -> Numbers:
        """Returns quantiles (0.1, 0.5, 0.9) of the logarithms of actual over analytic TTFT and TPOT for each row.

        Rows hold `FEATURES`, names `CATEGORIES`. Shape (rows, 2, 3), rising along the last axis.
        """
        ...

    @property
    def accepted(self) -> Mapping[str, float]:
        """Mean absolute logarithmic error on held-out data, by target."""
        ...

    @property
    def ranges(self) -> RangeCounter | None:
        """Ranges of `FEATURES` in training, to which `log_quantiles` clips; None if they are not known and nothing is clipped."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Some requests on all candidates at one moment. It refers to nothing that the model changes later.

    Attributes:
        named: The candidates.
        formula: Results of the formula in milliseconds, shape (requests, candidates, 2).
        rows, names: Input of the regressor, request by request.
        regressor: The regressor active then; None for none.
    """

    batch: Sequence[RequestFeatures]
    named: Sequence[str]
    formula: Numbers
    rows: NDArray[np.float32]
    names: NDArray[np.object_]
    regressor: Regressor | None

    def quantiles(self) -> Numbers:
        """Runs the learnt part, shape (requests, candidates, 2, 3): the slow part, for any thread, one at a time."""
        return log_quantiles(self.regressor, self.rows, self.names).reshape(*self.formula.shape, 3)


def log_quantiles(regressor: Regressor | None, rows: NDArray[np.float32], names: NDArray[np.object_]) -> Numbers:
    """Returns the regressor's quantiles within its limits; without a regressor, the formula's value with a default spread."""
    if regressor is None:
        said = np.zeros((len(rows), len(TARGETS), 3))
        said[..., 0], said[..., 2] = -DEFAULT_SPREAD, DEFAULT_SPREAD
        return said
    return np.clip(regressor.log_quantiles(rows, names), -LOG_LIMIT, LOG_LIMIT)
