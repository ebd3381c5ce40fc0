"""What the learnt part is asked: columns that stand by themselves, so that trees can be gone through beside the agent's loop. Pure."""

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
"""The regressor's word is taken up to a factor of e^2 either way; beyond lies extrapolation."""
DEFAULT_SPREAD = 0.35
"""Logarithm of the outer quantiles over the median before anything is known of them."""


class Regressor(Protocol):
    """The learnt part."""

    def log_quantiles(self, rows: NDArray[np.float32], names: NDArray[np.object_]) -> Numbers:
        """For each row of `FEATURES` and `CATEGORIES` quantiles (0.1, 0.5, 0.9) of the logarithms of actual over analytic TTFT and TPOT.

        Shape (rows, 2, 3), rising along the last axis.
        """
        ...

    @property
    def accepted(self) -> Mapping[str, float]:
        """Mean absolute logarithmic error on held-out data, by target."""
        ...

    @property
    def ranges(self) -> RangeCounter | None:
        """Ranges of `FEATURES` in training, to which `log_quantiles` clips; None where they are not known and nothing is clipped."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Some requests on all candidates as they stood at one moment. Nothing that the model goes on changing is referred to.

    Attributes:
        named: The candidates.
        formula: What the formula says, milliseconds, shape (requests, candidates, 2).
        rows, names: What the regressor is asked, request by request.
        regressor: The one in force then; None for none.
    """

    batch: Sequence[RequestFeatures]
    named: Sequence[str]
    formula: Numbers
    rows: NDArray[np.float32]
    names: NDArray[np.object_]
    regressor: Regressor | None

    def quantiles(self) -> Numbers:
        """What the learnt part answers, shape (requests, candidates, 2, 3): the long half, for any thread, one at a time."""
        return log_quantiles(self.regressor, self.rows, self.names).reshape(*self.formula.shape, 3)


def log_quantiles(regressor: Regressor | None, rows: NDArray[np.float32], names: NDArray[np.object_]) -> Numbers:
    """What the regressor says within its bounds; without one, that the formula is right, and a default spread."""
    if regressor is None:
        said = np.zeros((len(rows), len(TARGETS), 3))
        said[..., 0], said[..., 2] = -DEFAULT_SPREAD, DEFAULT_SPREAD
        return said
    return np.clip(regressor.log_quantiles(rows, names), -LOG_LIMIT, LOG_LIMIT)
