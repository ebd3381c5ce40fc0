"""Workloads as files: CSV or JSON lines, one request per row, both also gzipped.

Only `at_s`, `prompt_tokens` and `output_tokens` are required; see `OPTIONAL` for the defaults of the rest.
"""

from pathlib import Path
from typing import Any

import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import DEFAULT_IMPORTANCE, TaskType
from hmas.loadgen.requests import TASKS, Column
from hmas.loadgen.traces import records
from hmas.workloads.table import Workload, check_columns, slo_columns

NEEDED = ("at_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("max_tokens", "task", "importance", "slo_ttft_ms", "slo_tpot_ms", "tenant", "session", "block_hashes")
"""Their defaults: a cap equal to the output's length, the task `unknown`, the default importance, the SLO of Table 6 for both, the tenant
`default`, no session and no blocks."""
FIELDS = (*NEEDED, *OPTIONAL)
_STAND_INS = {"importance": DEFAULT_IMPORTANCE, "session": -1.0}
_NUMBERS = (*NEEDED, "max_tokens", "importance", "slo_ttft_ms", "slo_tpot_ms", "session")


def read_workload(path: Path) -> Workload:
    """Reads a file; the workload is named after it.

    Raises:
        TraceError: The file does not exist or has another format, or a row is bad (the error names row and field). The file is read as a
            whole or not at all.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    rows: list[int] = []
    numbers: dict[str, list[float]] = {field: [] for field in _NUMBERS}
    tasks: list[int] = []
    tenants: dict[str, int] = {}
    tenant: list[int] = []
    blocks: list[tuple[int, ...]] = []
    for row, record in records(path):
        where = f"{path}, row {row}"
        if not isinstance(record, dict):
            raise TraceError(f"{where}: wanted an object, got {str(record)[:60]!r}")
        for field in record:
            if field not in FIELDS:
                raise TraceError(f"{where}: {field or 'a value beyond the last column'} is no field; allowed: {', '.join(FIELDS)}")
        rows.append(row)
        for field, values in numbers.items():
            values.append(_number(where, field, record.get(field)))
        try:
            tasks.append(TASKS.index(TaskType(record.get("task") or "unknown")))
        except ValueError:
            raise TraceError(f"{where}: task is {record['task']}; allowed: {', '.join(TASKS)}") from None
        tenant.append(tenants.setdefault(str(record.get("tenant") or "default"), len(tenants)))
        blocks.append(_ids(where, record.get("block_hashes")))
    if not rows:
        raise TraceError(f"{path}: holds no rows")
    task = np.array(tasks, np.uint8)
    columns: dict[str, Column] = {field: np.array(values) for field, values in numbers.items()}
    ttft_ms, tpot_ms = slo_columns(task, columns["importance"], 1.0)
    for field, other in (("slo_ttft_ms", ttft_ms), ("slo_tpot_ms", tpot_ms), ("max_tokens", columns["output_tokens"])):
        columns[field] = np.where(np.isnan(columns[field]), other, columns[field])
    columns |= {"task": task, "tenant": np.array(tenant)}
    check_columns(str(path), columns, tenants=len(tenants), duration_s=0.0, where=lambda index: f"row {rows[index]}")
    name = path.name.partition(".")[0]
    hashes = tuple(blocks) if any(blocks) else None
    return Workload(name=name, **columns, tenants=tuple(tenants), duration_s=0.0, block_hashes=hashes)


def _number(where: str, field: str, value: Any) -> float:
    if value is None or value == "":
        if field in NEEDED:
            raise TraceError(f"{where}: {field} is missing; allowed: a number")
        # NaN marks values that are derived from other columns at the end.
        return _STAND_INS.get(field, np.nan)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise TraceError(f"{where}: {field} is {value!r}; allowed: a finite number")
    return number


def _ids(where: str, value: Any) -> tuple[int, ...]:
    try:
        ids = tuple(map(int, value.split() if isinstance(value, str) else value or ()))
    except (TypeError, ValueError):
        ids = (-1,)
    if any(number < 0 for number in ids):
        raise TraceError(f"{where}: block_hashes is {str(value)[:60]!r}; allowed: whole numbers, 0 or more")
    return ids
