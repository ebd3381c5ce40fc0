"""The analytic formula of `profile_model`, as it is stored: what times are made of, with coefficients fitted to measured engines. Pure."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.prediction.hardware import Setup

_BUSY = 16.0


class Formula(msgspec.Struct, frozen=True):
    """Formula and curves.

    Attributes:
        coefficients: Of `terms`, for `ttft` and `itl`.
        curves: By target and configuration: logarithms of users, and of measured over formula there.
    """

    coefficients: dict[str, list[float]]
    curves: dict[str, dict[str, list[tuple[float, float]]]]


def terms(setups: Sequence[Setup], users: NDArray[np.float64]) -> NDArray[np.float64]:
    """What times are made of: a step's floor, and what each user adds to it by computing, reading and exchanging. One row per entry."""
    own = np.array([(one.read_ms, float(one.split > 1), one.token_ms, one.kv_read_ms, one.exchange_ms, float(one.split)) for one in setups])
    read, several, token, kv_read, exchange, split = own.T
    one = np.ones(len(users))
    return np.column_stack(
        [one, read, several, users, users * token, users * read, users * several, users * kv_read, users * exchange, users * split]
    )


def step_line(formula: Formula, setup: Setup) -> tuple[float, float]:
    """A decode step as a line in the sequences that decode: milliseconds of an empty one, and of each."""
    few, many = terms([setup, setup], np.array([1.0, _BUSY])) @ np.array(formula.coefficients["itl"])
    per_seq = max(1e-4, float(many - few) / (_BUSY - 1.0))
    return max(float(few) - per_seq, 0.05 * float(few)), per_seq
