"""Reads the tables of ServeGen's published clients: rates and burstiness per client and window, and marginal length histograms."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.loadgen.traces import records
from hmas.workloads.columns import Floats
from hmas.workloads.processes import Family

WINDOW_S = 600.0
CLIENTS, HISTOGRAMS, SUMMARY = "servegen_clients_10min", "servegen_length_hist", "servegen_client_length_summary"
FAMILIES: dict[str, Family] = {"Gamma": "gamma", "Weibull": "weibull", "Exponential": "exponential"}


class ClientWindow(NamedTuple):
    """One client in one 600 s window: mean rate, and CV and fitted family of the gaps between its requests."""

    client: int
    t_s: float
    rate_rps: float
    cv: float
    family: Family


class Histogram(NamedTuple):
    """Lengths in an interval of hours: bins `low` to `high` (exclusive) with their expected numbers of requests as weights."""

    low: Floats
    high: Floats
    weight: Floats


class ServeGenData(NamedTuple):
    """One model's tables.

    Attributes:
        windows: In the file's order.
        histograms: By field and start of the interval, in seconds.
        means: Mean length by field and client.
    """

    windows: list[ClientWindow]
    histograms: dict[str, dict[float, Histogram]]
    means: dict[str, dict[int, float]]


def read_servegen(folder: Path, model: str) -> ServeGenData:
    """Reads the three tables of a folder.

    Raises:
        TraceError: A table is missing, the model is not in it, or a row is bad (named with its field).
    """
    models: set[str] = set()
    windows = [
        ClientWindow(row.whole("client"), row.number("t_s"), row.number("rate_rps"), row.number("cv_iat"), row.family())
        for row in _rows(folder, CLIENTS, model, models)
    ]
    if not windows:
        raise TraceError(f"model is {model!r}; allowed: {', '.join(sorted(models))}")
    bins: dict[str, dict[float, list[tuple[float, float, float]]]] = {}
    for row in _rows(folder, HISTOGRAMS, model, models):
        stretch = bins.setdefault(row.text("field"), {}).setdefault(row.number("t_s"), [])
        stretch.append((*row.bin(), row.number("est_requests")))
    histograms = {
        field: {t_s: Histogram(*np.array(sorted(found)).T) for t_s, found in stretches.items()} for field, stretches in bins.items()
    }
    means: dict[str, dict[int, float]] = {}
    for row in _rows(folder, SUMMARY, model, models):
        means.setdefault(row.text("field"), {})[row.whole("client")] = row.number("mean_value")
    return ServeGenData(windows, histograms, means)


class _Row:
    """One row, read by field."""

    def __init__(self, path: Path, line: int, record: dict[str, Any]) -> None:
        self._where = f"{path}, row {line}"
        self._record = record

    def text(self, field: str) -> str:
        value = self._record.get(field)
        if not value:
            raise TraceError(f"{self._where}: {field} is missing")
        return str(value)

    def number(self, field: str) -> float:
        return self._parsed(field, "a number, 0 or more")

    def whole(self, field: str) -> int:
        number = self._parsed(field, "a whole number, 0 or more")
        if not number.is_integer():
            raise TraceError(f"{self._where}: {field} is {number}; allowed: a whole number, 0 or more")
        return int(number)

    def bin(self) -> tuple[float, float]:
        low, high = self.number("bin_lo"), self.number("bin_hi")
        if high <= low:
            raise TraceError(f"{self._where}: bin_hi is {high}; allowed: above bin_lo, {low}")
        return low, high

    def family(self) -> Family:
        pattern = self.text("pattern")
        if pattern not in FAMILIES:
            raise TraceError(f"{self._where}: pattern is {pattern!r}; allowed: {', '.join(FAMILIES)}")
        return FAMILIES[pattern]

    def _parsed(self, field: str, allowed: str) -> float:
        value = self.text(field)
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0.0 <= number < 1e12:
            raise TraceError(f"{self._where}: {field} is {value!r}; allowed: {allowed}")
        return number


def _rows(folder: Path, table: str, model: str, models: set[str]) -> Iterator[_Row]:
    found = next((path for suffix in (".csv.gz", ".csv") if (path := folder / f"{table}{suffix}").is_file()), None)
    if found is None:
        raise TraceError(f"{folder}: holds no {table}.csv or {table}.csv.gz; allowed: a folder with ServeGen's three tables")
    for line, record in records(found):
        models.add(str(record.get("model")))
        if record.get("model") == model:
            yield _Row(found, line, record)
