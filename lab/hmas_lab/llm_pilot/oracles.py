"""Computes how far single requests can be predicted at all: R² of oracles that know more than any forecast, from the same log. Pure.

Logs repeat themselves: requests with the same numbers of tokens recur in the same cell. Nothing that depends on cell and request alone
explains the difference between such twins ("pure error" in tests for lack of fit; Draper and Smith, Applied Regression Analysis).

Only knowledge of the moment can explain more, from telemetry or from the time since a run began, so forecasts may exceed `request`.
`moment` shows how much that is worth where times change slowly: twins sent one after the other differ by less (half of the mean squared
difference of neighbours; von Neumann 1941, Rice 1984). Where times change within a burst, a forecast may exceed that, too.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmas_lab.llm_pilot.rows import Rows, groups
from hmas_lab.llm_pilot.state import Column

ORACLES: Mapping[str, str] = {
    "cell": "knows the mean of the very cell that is foretold",
    "request": "knows the mean of requests with the very same tokens in the very cell",
    "moment": "knows their mean at that moment, as far as two of them sent one after the other tell it",
}
LENGTHS = (1, 2, 3, 6, 10, 20, 50)
"""Output tokens at which classes begin."""


def oracles(rows: Rows, came: Column) -> dict[str, float]:
    """Returns R² of each of `ORACLES` over requests of cells that are not starved, and the share of requests that have a twin.

    Variances are unbiased: an oracle does not know the request itself, only its twins. NaN if nothing varies or no twin is found.
    """
    kept = np.flatnonzero(np.isfinite(came) & ~rows.starved())
    part, true = rows.take(kept), came[kept]
    spread = float(np.sum((true - true.mean()) ** 2)) if len(true) else 0.0
    if spread <= 0.0:
        return {**dict.fromkeys(ORACLES, math.nan), "twins": math.nan}
    cells = part.cells()
    in_cell = sum(float(np.sum((true[index] - true[index].mean()) ** 2)) for _, index in groups(cells))
    left, paired, squares, steps = 0.0, 0, 0.0, 0
    for index in _twins(part, cells):
        ordered = true[index[np.argsort(part.start_ms[index], kind="stable")]]
        left += len(index) * float(np.var(ordered, ddof=1))
        paired += len(index)
        squares += float(np.sum(np.diff(ordered) ** 2)) / 2.0
        steps += len(index) - 1
    of_all = len(true) / spread
    return {
        "cell": 1.0 - in_cell / spread,
        # Requests without a twin are assumed to be as hard to predict as those with one.
        "request": 1.0 - left / paired * of_all if paired else math.nan,
        "moment": 1.0 - squares / steps * of_all if steps else math.nan,
        "twins": paired / len(true),
    }


def foretellable(rows: Rows, came: Mapping[str, Column]) -> dict[str, dict[str, Any]]:
    """By quantity: the oracles over all requests, by GPU, by users and by output tokens."""
    classes = np.digitize(rows.output, LENGTHS)
    names = np.array([f"{low}-{high - 1}" if high > low + 1 else f"{low}" for low, high in pairwise(LENGTHS)])
    lengths = np.append(names, f"{LENGTHS[-1]}+")[classes - 1]
    return {
        quantity: {
            **oracles(rows, values),
            "by_gpu": _by(rows, values, rows.gpu),
            "by_users": _by(rows, values, rows.users.astype(np.int64)),
            "by_output_tokens": _by(rows, values, lengths),
        }
        for quantity, values in came.items()
    }


def _by(rows: Rows, came: Column, keys: NDArray[Any]) -> dict[str, dict[str, float]]:
    answer = {}
    for key in np.unique(keys):
        chosen = np.flatnonzero(keys == key)
        answer[str(key)] = oracles(rows.take(chosen), came[chosen])
    return answer


def _twins(rows: Rows, cells: NDArray[np.str_]) -> Iterable[NDArray[np.int64]]:
    """Returns positions of requests of one cell with the same tokens in and out, for two or more such requests."""
    _, number = np.unique(cells, return_inverse=True)
    keys = np.column_stack([number, rows.prompt, rows.output])
    order = np.lexsort(keys.T)
    ends = np.flatnonzero(np.any(np.diff(keys[order], axis=0) != 0, axis=1)) + 1
    return (index for index in np.split(order, ends) if len(index) > 1)
