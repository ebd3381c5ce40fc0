"""Readers of public workload files: Azure CSV, Mooncake JSONL, and prompt files in common formats of Hugging Face.

A reader yields plain rows; `hmas.loadgen.replaying` turns them into arrivals. Files may be gzipped.
"""

import csv
import gzip
import importlib
import io
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.loadgen.trace_prompts import CHAT_FIELDS, TEXT_FIELDS, read_prompt_row

TraceFormat = Literal["azure", "mooncake", "prompts"]
FORMATS: tuple[TraceFormat, ...] = ("azure", "mooncake", "prompts")
MAX_ROWS = 1_000_000
MAX_TOKENS = 10_000_000
MOONCAKE_TICK_MS = 3000
"""Mooncake's conversation trace has times rounded to this; requests are spread within a tick, because otherwise each tick is a burst."""
TICK_EVIDENCE = 20
DETECT_ROWS = 50

TIME_COLUMNS = ("TIMESTAMP", "timestamp_utc", "arrival_s", "arrived_at")
PROMPT_COLUMNS = ("ContextTokens", "context_tokens", "num_prefill_tokens", "input_tokens")
OUTPUT_COLUMNS = ("GeneratedTokens", "generated_tokens", "num_decode_tokens", "output_tokens")


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace.

    Attributes:
        at_s: Seconds from the trace's first request; None if the file has no times.
        prompt_tokens: None if only the text is known.
        output_tokens: None if the file has neither a length nor an answer.
        messages: (role, content) pairs; empty if the file has only lengths.
        blocks: Ids of the prompt's 512-token blocks; equal leading ids mean a shared prefix.
        task_type: The task type from the file, None if it has none.
    """

    at_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    messages: tuple[tuple[str, str], ...] = ()
    blocks: tuple[int, ...] = ()
    task_type: TaskType | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a trace file.

    Attributes:
        rows: In order of time.
        skipped: Number of bad rows that were left out; `complaints` has the first few reasons.
        reordered: Number of rows that were later in the file than their time.
    """

    source: str
    format: TraceFormat
    rows: list[TraceRow]
    skipped: int = 0
    complaints: list[str] = []
    reordered: int = 0


def read_trace(
    path: Path, *, format_name: TraceFormat | None = None, limit: int = 0, skip_bad: bool = False, as_recorded: bool = False
) -> Trace:
    """Reads a trace file.

    Args:
        path: `.csv`, `.jsonl`, `.json` (each also `.gz`) or `.parquet`.
        format_name: The format; None to detect it from the name and the first row.
        limit: Take this many first good rows, 0 for all (a million at most).
        skip_bad: Count bad rows and continue, instead of stopping at the first.
        as_recorded: Keep Mooncake's times on their ticks, and refuse rows that are later in the file than their time, instead of sorting
            them.

    Raises:
        TraceError: There is no such file, the format is unknown, a row is bad (the error names its field), or no row is usable.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    if limit < 0:
        raise TraceError(f"limit is {limit}; allowed: 0 (all) or more")
    raw = records(path)
    head = list(itertools.islice(raw, DETECT_ROWS))
    if not head:
        raise TraceError(f"{path}: holds no rows")
    chosen = format_name or _detect(path, [record for _, record in head])
    read = _READERS[chosen]
    rows: list[TraceRow] = []
    complaints: list[str] = []
    skipped = 0
    for number, record in itertools.chain(head, raw):
        try:
            row = read(record)
            if as_recorded and rows:
                _refuse_earlier(rows[-1], row)
            rows.append(row)
        except TraceError as error:
            if not skip_bad:
                advice = "" if as_recorded else "; --skip-bad leaves such rows out"
                raise TraceError(f"{path}, row {number}: {error}{advice}") from error
            skipped += 1
            if len(complaints) < 5:
                complaints.append(f"row {number}: {error}")
        if len(rows) >= (limit or MAX_ROWS):
            break
    if not rows:
        raise TraceError(f"{path}: none of {skipped} rows can be used; {complaints[0] if complaints else 'it is empty'}")
    ordered, reordered = _in_order(rows)
    if chosen == "mooncake" and not as_recorded:
        ordered = _spread_ticks(ordered)
    return Trace(source=path.name, format=chosen, rows=ordered, skipped=skipped, complaints=complaints, reordered=reordered)


def _detect(path: Path, records: list[Any]) -> TraceFormat:
    """Detects the format from the first row with known fields; bad rows may precede it."""
    fields = [set(map(str, record)) for record in records if isinstance(record, dict)]
    for keys in fields:
        if keys & set(PROMPT_COLUMNS) and keys & set(OUTPUT_COLUMNS) and _base_suffix(path) == ".csv":
            return "azure"
        if {"timestamp", "input_length"} <= keys:
            return "mooncake"
        if keys & {*TEXT_FIELDS, *CHAT_FIELDS}:
            return "prompts"
    seen = ", ".join(sorted(fields[0])[:12]) if fields else "no row is a JSON object"
    raise TraceError(f"{path}: format not recognised from the fields ({seen}); name one with --format: {', '.join(FORMATS)}")


def _base_suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields row number (from 1, counting a header) and raw record; a line that is not JSON is yielded as bytes."""
    suffix = _base_suffix(path)
    if suffix == ".parquet":
        yield from _parquet(path)
        return
    if suffix not in {".csv", ".jsonl", ".json"}:
        raise TraceError(f"{path}: files of type {suffix or '(none)'} are not read; allowed: .csv, .jsonl, .json (each also .gz), .parquet")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as handle:
            if suffix == ".csv":
                text = io.TextIOWrapper(handle, encoding="utf-8-sig", errors="replace", newline="")
                yield from enumerate(csv.DictReader(text), 2)
            elif suffix == ".jsonl":
                yield from ((n, _parse(line)) for n, line in enumerate(handle, 1) if line.strip())
            else:
                yield from enumerate(_json_list(path, handle.read()), 1)
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return line


def _json_list(path: Path, data: bytes) -> Iterable[Any]:
    document = _parse(data)
    if isinstance(document, dict):
        document = next((document[key] for key in ("data", "rows", "train", "test") if isinstance(document.get(key), list)), document)
    if not isinstance(document, list):
        raise TraceError(f"{path}: wanted a JSON list of objects (or an object with one under data, rows, train or test)")
    return document


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        pq = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise TraceError(f"{path}: reading Parquet needs pyarrow (pip install pyarrow); or convert the file to .jsonl") from error
    number = 0
    for batch in pq.ParquetFile(path).iter_batches(batch_size=1024):
        for record in batch.to_pylist():
            number += 1
            yield number, record


def _column(record: dict[str, Any], names: tuple[str, ...], what: str) -> tuple[str, Any]:
    for name in names:
        if record.get(name) not in (None, ""):
            return name, record[name]
    raise TraceError(f"{what} is missing; wanted one of {', '.join(names)}")


def _tokens(field: str, value: Any, least: int) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TraceError(f"{field} is {value!r}; wanted a whole number of tokens") from None
    if not number.is_integer() or not least <= number <= MAX_TOKENS:
        raise TraceError(f"{field} is {value!r}; allowed: whole numbers from {least} to {MAX_TOKENS}")
    return int(number)


def _seconds(field: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        try:
            stamp = datetime.fromisoformat(str(value).strip())
        except ValueError:
            raise TraceError(f"{field} is {value!r}; wanted seconds or an ISO date and time") from None
        # Azure's time stamps have no zone; any fixed zone gives the same differences.
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
    if not -1e15 < number < 1e15:
        raise TraceError(f"{field} is {value!r}; wanted a finite number of seconds")
    return number


def _azure(record: Any) -> TraceRow:
    if not isinstance(record, dict):
        raise TraceError("wanted a row with named columns")
    prompt_field, prompt = _column(record, PROMPT_COLUMNS, "the prompt's length")
    output_field, output = _column(record, OUTPUT_COLUMNS, "the output's length")
    timed = [name for name in TIME_COLUMNS if name in record]
    at_s = None
    if timed:
        # If there are both, the exact offset is better than the printed time stamp.
        field = "arrival_s" if "arrival_s" in timed else timed[0]
        at_s = _seconds(field, record[field])
    return TraceRow(at_s=at_s, prompt_tokens=_tokens(prompt_field, prompt, 1), output_tokens=_tokens(output_field, output, 1))


def _mooncake(record: Any) -> TraceRow:
    if not isinstance(record, dict):
        raise TraceError(f"wanted a JSON object, got {str(record)[:60]!r}")
    for field in ("timestamp", "input_length", "output_length"):
        if field not in record:
            raise TraceError(f"{field} is missing")
    blocks = record.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(isinstance(b, int) and b >= 0 for b in blocks):
        raise TraceError("hash_ids must be a list of whole numbers, 0 or more")
    return TraceRow(
        at_s=_seconds("timestamp", record["timestamp"]) / 1000.0,
        prompt_tokens=_tokens("input_length", record["input_length"], 1),
        output_tokens=_tokens("output_length", record["output_length"], 1),
        blocks=tuple(blocks),
    )


def _prompts(record: Any) -> TraceRow:
    found = read_prompt_row(record)
    return TraceRow(
        prompt_tokens=None,
        output_tokens=None if found.output_tokens is None else _tokens("output_tokens", found.output_tokens, 1),
        messages=found.messages,
        task_type=found.task_type,
    )


_READERS: dict[TraceFormat, Callable[[Any], TraceRow]] = {"azure": _azure, "mooncake": _mooncake, "prompts": _prompts}


def _in_order(rows: list[TraceRow]) -> tuple[list[TraceRow], int]:
    """Rows sorted by time from 0 on, and the number of rows out of order; if a time is missing, the file's order is kept."""
    times = [row.at_s for row in rows]
    known = [t for t in times if t is not None]
    if len(known) < len(rows):
        return [msgspec.structs.replace(row, at_s=None) for row in rows], 0
    reordered = sum(b < a for a, b in itertools.pairwise(known))
    start = min(known)
    timed = sorted(zip(known, range(len(rows)), strict=True))
    return [msgspec.structs.replace(rows[i], at_s=at_s - start) for at_s, i in timed], reordered


def _refuse_earlier(before: TraceRow, row: TraceRow) -> None:
    if before.at_s is not None and row.at_s is not None and row.at_s < before.at_s:
        raise TraceError(f"the time is {row.at_s} s; allowed: no earlier than the row before, {before.at_s} s (sort the rows by time)")


def ticks_of(rows: list[TraceRow]) -> list[int] | None:
    """The number of each row's 3 s tick, from the first; None if times are finer than ticks, or there are too few."""
    times_ms = [(row.at_s or 0.0) * 1000.0 for row in rows]
    ticks = [round(t / MOONCAKE_TICK_MS) for t in times_ms]
    # Some published ticks are off by a millisecond.
    on_ticks = all(abs(t - MOONCAKE_TICK_MS * tick) < 2.5 for t, tick in zip(times_ms, ticks, strict=True))
    return ticks if len(rows) >= TICK_EVIDENCE and on_ticks else None


def _spread_ticks(rows: list[TraceRow]) -> list[TraceRow]:
    """Spreads the requests of each 3 s tick evenly over it, in their order; no change if times are finer than ticks."""
    ticks = ticks_of(rows)
    if ticks is None:
        return rows
    members, seen = Counter(ticks), Counter[int]()
    spread = []
    for row, tick in zip(rows, ticks, strict=True):
        at_ms = MOONCAKE_TICK_MS * (tick + seen[tick] / members[tick])
        seen[tick] += 1
        spread.append(msgspec.structs.replace(row, at_s=at_ms / 1000.0))
    return spread
