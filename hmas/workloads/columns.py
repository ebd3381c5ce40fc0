"""The columns of a workload: their types, their ranges, and their check."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from hmas.controller.core.errors import TraceError
from hmas.controller.core.slo import IMPORTANCE_MAX, IMPORTANCE_MIN
from hmas.controller.core.types import TaskType

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]
Where = Callable[[int], str]

TASKS: tuple[TaskType, ...] = tuple(TaskType)
"""The values of the `task` column, which is an index into these: the rows of H-MAS Table 6 in order, and `unknown` last."""
MAX_TOKENS = 10_000_000
MAX_TENANTS = 65_535

DTYPES: Mapping[str, type[np.generic]] = MappingProxyType(
    {
        "at_s": np.float64,
        "prompt_tokens": np.int32,
        "output_tokens": np.int32,
        "max_tokens": np.int32,
        "task": np.uint8,
        "importance": np.float32,
        "slo_ttft_ms": np.float32,
        "slo_tpot_ms": np.float32,
        "tenant": np.uint16,
        "session": np.int32,
    }
)
COLUMNS: tuple[str, ...] = tuple(DTYPES)


def check_columns(name: str, columns: Mapping[str, Column], *, tenants: int, duration_s: float, where: Where) -> None:
    """Checks every column against its range.

    Args:
        name: The workload or file, for error messages.
        columns: All of `COLUMNS`, of any numeric type.
        tenants: Number of tenants.
        duration_s: Length of the workload, 0 if it is to be computed.
        where: Names a row in error messages, by its index from 0.

    Raises:
        TraceError: A value is out of range, missing (NaN) or out of order; the error names row, field, value and what is allowed.
    """
    count = len(columns["at_s"])
    if not 1 <= tenants <= MAX_TENANTS:
        raise TraceError(f"{name}: {tenants} tenants; allowed: 1 to {MAX_TENANTS}")
    if not (duration_s >= 0.0 and np.isfinite(duration_s)):
        raise TraceError(f"{name}: duration_s is {duration_s}; allowed: a finite number of seconds, 0 or more")

    def refuse(bad: npt.NDArray[np.bool_], field: str, values: Column, allowed: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(f"{name}, {where(row)}: {field} is {values[row].item()}; allowed: {allowed}")

    bounds: dict[str, tuple[float, float]] = {
        "at_s": (0.0, 1e12),
        "prompt_tokens": (1, MAX_TOKENS),
        "output_tokens": (1, MAX_TOKENS),
        "max_tokens": (1, MAX_TOKENS),
        "task": (0, len(TASKS) - 1),
        "importance": (IMPORTANCE_MIN, IMPORTANCE_MAX),
        "slo_ttft_ms": (1e-3, 1e9),
        "slo_tpot_ms": (1e-3, 1e9),
        "tenant": (0, tenants - 1),
        "session": (-1, 2**31 - 1),
    }
    for field, (least, most) in bounds.items():
        values = columns[field]
        if values.shape != (count,):
            raise TraceError(f"{name}: {field} has the shape {values.shape}; allowed: ({count},), one value per request")
        # Written so that NaN, which compares false with everything, counts as out of range.
        refuse(~((values >= least) & (values <= most)), field, values, f"{least:.12g} to {most:.12g}")
        if values.dtype.kind == "f" and issubclass(DTYPES[field], np.integer):
            refuse(values != np.floor(values), field, values, "whole numbers")
    at_s = columns["at_s"]
    if count > 1:
        earlier = np.concatenate(([False], at_s[1:] < at_s[:-1]))
        refuse(earlier, "at_s", at_s, "no earlier than the row before (sort the rows by time)")
    if count and 0.0 < duration_s < float(at_s[-1]):
        raise TraceError(f"{name}: duration_s is {duration_s}; allowed: no less than the last arrival, {float(at_s[-1])} s")
    output = columns["output_tokens"]
    refuse(output > columns["max_tokens"], "output_tokens", output, "no more than the row's max_tokens")
