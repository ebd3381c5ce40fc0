"""The input of the regressor, self-contained so that the trees can run outside of the agent's event loop, and what follows from its output.

Pure.
"""

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


class Regressor(Protocol):
    """The learnt part of the model."""

    def log_ratios(self, rows: NDArray[np.float32], names: NDArray[np.object_]) -> Numbers:
        """Returns the medians of the logarithms of actual over analytic TTFT and TPOT for each row.

        Rows hold `FEATURES`, names `CATEGORIES`. Shape (rows, 2).
        """
        ...

    @property
    def accepted(self) -> Mapping[str, float]:
        """Mean absolute logarithmic error on held-out data, by target."""
        ...

    @property
    def ranges(self) -> RangeCounter | None:
        """Ranges of `FEATURES` in training, to which `log_ratios` clips; None if they are not known and nothing is clipped."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Some requests on all candidates at one moment. It refers to nothing that the model changes later.

    Attributes:
        named: The candidates.
        alone_at: See `Fleet.alone_at`.
        formula: Results of the formula in milliseconds, shape (requests, candidates and these without load, 2).
        rows, names: Input of the regressor, request by request.
        regressor: The regressor active then; None for none.
    """

    batch: Sequence[RequestFeatures]
    named: Sequence[str]
    alone_at: NDArray[np.intp]
    formula: Numbers
    rows: NDArray[np.float32]
    names: NDArray[np.object_]
    regressor: Regressor | None

    def log_ratios(self) -> Numbers:
        """Runs the learnt part, in the shape of `formula`: the slow part, for any thread, one at a time. Without a regressor it is 0."""
        if self.regressor is None:
            return np.zeros(self.formula.shape)
        return np.clip(self.regressor.log_ratios(self.rows, self.names), -LOG_LIMIT, LOG_LIMIT).reshape(self.formula.shape)
