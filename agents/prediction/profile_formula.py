"""The analytic formula of `profile_model` in its stored form: the terms of times, with coefficients fitted to measured engines. Pure."""

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
    """Returns the terms of times: a step's minimum, and what each user adds by computing, reading and exchanging. One row per entry."""
    own = np.array([(one.read_ms, float(one.split > 1), one.token_ms, one.kv_read_ms, one.exchange_ms, float(one.split)) for one in setups])
    read, several, token, kv_read, exchange, split = own.T
    one = np.ones(len(users))
    return np.column_stack(
        [one, read, several, users, users * token, users * read, users * several, users * kv_read, users * exchange, users * split]
    )


def step_line(formula: Formula, setup: Setup) -> tuple[float, float]:
    """Returns a decode step as a line over the decoding sequences: milliseconds of an empty step, and per sequence."""
    few, many = terms([setup, setup], np.array([1.0, _BUSY])) @ np.array(formula.coefficients["itl"])
    per_seq = max(1e-4, float(many - few) / (_BUSY - 1.0))
    return max(float(few) - per_seq, 0.05 * float(few)), per_seq
