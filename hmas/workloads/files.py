"""Workloads as files: CSV or JSON lines, one request per row, both also gzipped.

The first line has name, duration and block size (`# {...}` in CSV, an object with `workload` in JSONL); it is optional. Only `at_s`,
`prompt_tokens` and `output_tokens` are required; see `OPTIONAL` for the defaults of the rest.
"""

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np
import orjson

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import DEFAULT_IMPORTANCE, TaskType
from hmas.workloads.annotate import slo_columns
from hmas.workloads.columns import COLUMNS, TASKS, Column, check_columns
from hmas.workloads.table import HASH_TOKENS, Workload

NEEDED = ("at_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("max_tokens", "task", "importance", "slo_ttft_ms", "slo_tpot_ms", "tenant", "session", "block_hashes")
"""Their defaults: a cap equal to the output's length, the task `unknown`, the default importance, the SLO of Table 6 for both, the tenant
`default`, no session and no blocks."""
FIELDS = (*NEEDED, *OPTIONAL)
_STAND_INS = {"importance": DEFAULT_IMPORTANCE, "session": -1.0}
_NUMBERS = (*NEEDED, "max_tokens", "importance", "slo_ttft_ms", "slo_tpot_ms", "session")
_SLICE = 8192


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a file."""

    workload: str
    duration_s: float = 0.0
    hash_tokens: int = HASH_TOKENS


def write_workload(workload: Workload, path: Path) -> None:
    """Writes `.csv` or `.jsonl`, each also `.gz`; the same workload gives the same bytes.

    Raises:
        TraceError: The file has another suffix or cannot be written.
    """
    as_csv = _is_csv(path)
    head = msgspec.json.encode(Head(workload=workload.name, duration_s=workload.duration_s, hash_tokens=workload.hash_tokens)).decode()
    fields = COLUMNS if workload.block_hashes is None else (*COLUMNS, "block_hashes")
    try:
        with path.open("wb") as file:
            packed = gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) if path.suffix == ".gz" else None
            raw: IO[bytes] = file if packed is None else cast("IO[bytes]", packed)
            with raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as out:
                if as_csv:
                    out.write(f"# {head}\n")
                    writer = csv.writer(out, lineterminator="\n")
                    writer.writerow(fields)
                    writer.writerows([" ".join(map(str, v)) if isinstance(v, tuple) else v for v in row] for row in _rows(workload))
                else:
                    out.write(head + "\n")
                    out.writelines(orjson.dumps(dict(zip(fields, row, strict=True))).decode() + "\n" for row in _rows(workload))
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error}") from error


def _rows(workload: Workload) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(workload), _SLICE):
        part = slice(start, start + _SLICE)
        columns: dict[str, list[Any]] = {field: getattr(workload, field)[part].tolist() for field in COLUMNS}
        columns["task"] = [TASKS[number].value for number in columns["task"]]
        columns["tenant"] = [workload.tenants[number] for number in columns["tenant"]]
        if workload.block_hashes is not None:
            columns["block_hashes"] = list(workload.block_hashes[part])
        yield from zip(*columns.values(), strict=True)


def read_workload(path: Path) -> Workload:
    """Reads a file of `write_workload`, or another file with the same columns.

    Raises:
        TraceError: The file does not exist or has another format, or a row is bad (the error names line and field). The file is read as a
            whole or not at all.
    """
    as_csv = _is_csv(path)
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as raw:
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            head, records = _csv_records(path, text) if as_csv else _json_records(path, text)
            found = _Found(path)
            for line, record in records:
                found.take(line, record)
    except (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    return found.workload(head or Head(workload=path.name.partition(".")[0]))


def _is_csv(path: Path) -> bool:
    kind = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if kind not in {".csv", ".jsonl"}:
        raise TraceError(f"{path}: workloads are not kept in files of type {kind or '(none)'}; allowed: .csv, .jsonl, each also .gz")
    return kind == ".csv"


def _csv_records(path: Path, text: Iterable[str]) -> tuple[Head | None, Iterator[tuple[int, dict[str, Any]]]]:
    lines = iter(text)
    first = next(lines, "")
    head = _head(path, first[1:]) if first.startswith("#") else None
    reader = csv.DictReader(lines if head else itertools.chain([first], lines), restkey="(beyond the last column)")
    before = 1 if head else 0
    return head, ((before + reader.line_num, record) for record in reader)


def _json_records(path: Path, text: Iterable[str]) -> tuple[Head | None, Iterator[tuple[int, dict[str, Any]]]]:
    lines = ((number, line) for number, line in enumerate(text, 1) if line.strip())
    number, first = next(lines, (1, ""))
    head = _head(path, first) if '"workload"' in first else None
    rest = lines if head or not first else itertools.chain([(number, first)], lines)
    return head, ((number, _object(path, number, line)) for number, line in rest)


def _head(path: Path, text: str) -> Head:
    try:
        return msgspec.json.decode(text, type=Head)
    except msgspec.DecodeError as error:
        raise TraceError(
            f"{path}, line 1: {text.strip()[:80]!r} does not tell a workload's name, duration_s and hash_tokens: {error}"
        ) from error


def _object(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{path}, line {line}: no JSON ({error})") from error
    if not isinstance(record, dict):
        raise TraceError(f"{path}, line {line}: wanted an object, got {text.strip()[:60]!r}")
    return record


class _Found:
    """The columns of a file's rows that have been read so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[int] = []
        self._numbers: dict[str, list[float]] = {field: [] for field in _NUMBERS}
        self._tasks: list[int] = []
        self._tenants: dict[str, int] = {}
        self._tenant: list[int] = []
        self._blocks: list[tuple[int, ...]] = []

    def take(self, line: int, record: dict[str, Any]) -> None:
        unknown = sorted(set(record) - set(FIELDS))
        if unknown:
            raise self._bad(line, unknown[0], record[unknown[0]], f"no such field, only {', '.join(FIELDS)}")
        self._lines.append(line)
        for field, values in self._numbers.items():
            values.append(self._number(line, field, record.get(field)))
        try:
            self._tasks.append(TASKS.index(TaskType(record.get("task") or "unknown")))
        except ValueError:
            raise self._bad(line, "task", record["task"], ", ".join(TASKS)) from None
        tenant = str(record.get("tenant") or "default")
        self._tenant.append(self._tenants.setdefault(tenant, len(self._tenants)))
        self._blocks.append(self._ids(line, record.get("block_hashes")))

    def workload(self, head: Head) -> Workload:
        if not self._lines:
            raise TraceError(f"{self._path}: holds no rows")
        task = np.array(self._tasks, np.uint8)
        columns: dict[str, Column] = {field: np.array(values) for field, values in self._numbers.items()}
        ttft_ms, tpot_ms = slo_columns(task, columns["importance"], 1.0)
        for field, other in (("slo_ttft_ms", ttft_ms), ("slo_tpot_ms", tpot_ms), ("max_tokens", columns["output_tokens"])):
            columns[field] = np.where(np.isnan(columns[field]), other, columns[field])
        columns |= {"task": task, "tenant": np.array(self._tenant)}
        check_columns(
            str(self._path),
            columns,
            tenants=len(self._tenants),
            duration_s=head.duration_s,
            where=lambda row: f"line {self._lines[row]}",
        )
        return Workload(
            name=head.workload,
            **columns,
            tenants=tuple(self._tenants),
            duration_s=head.duration_s,
            block_hashes=tuple(self._blocks) if any(self._blocks) else None,
            hash_tokens=head.hash_tokens,
        )

    def _number(self, line: int, field: str, value: Any) -> float:
        if value is None or value == "":
            if field in NEEDED:
                raise self._bad(line, field, "missing", "a number")
            # NaN marks values that are derived from other columns at the end.
            return _STAND_INS.get(field, np.nan)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = np.nan
        if not np.isfinite(number):
            raise self._bad(line, field, repr(value), "a finite number")
        return number

    def _ids(self, line: int, value: Any) -> tuple[int, ...]:
        try:
            ids = tuple(map(int, value.split() if isinstance(value, str) else value or ()))
        except (TypeError, ValueError):
            ids = (-1,)
        if any(number < 0 for number in ids):
            raise self._bad(line, "block_hashes", repr(value)[:60], "whole numbers, 0 or more")
        return ids

    def _bad(self, line: int, field: str, value: Any, allowed: str) -> TraceError:
        return TraceError(f"{self._path}, line {line}: {field} is {value}; allowed: {allowed}")
