"""Request logs in the format of LLM-Pilot's measurements: one request per row, closed-loop users against one configuration.

Source of the format and of the figures: IBM's LLM-Pilot (Lazuka et al., SC24; data under CDLA-Permissive-2.0), `ttft_ms` counted from the
opening of the stream (`open_ms`), `itl_*` empty if a request produced a single token. A configuration is a model on a number of GPUs of
one type; a cell is a configuration under a number of users.

The state of telemetry when a request arrived (`Rows.state`) is computed only from the results that earlier rows had shown by then.
"""

import csv
import gzip
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from hmas.controller.core.errors import TraceError
from hmas_lab.llm_pilot.state import STATE, Column, state_of

NUMBERS = ("n_gpus", "num_users", "start_offset_ms", "n_input_tokens", "n_output_tokens", "ttft_ms", "latency_ms")
OPTIONAL = ("open_ms", "itl_mean_ms")
COLUMNS = ("model", "gpu_type", *NUMBERS, *OPTIONAL)
MAX_ROWS = 2_000_000
STARVED_BEFORE = 0.2
"""Share of the run, see `Rows.starved`."""
_LEAST: Mapping[str, float] = MappingProxyType(
    {
        "n_gpus": 1.0,
        "num_users": 1.0,
        "start_offset_ms": 0.0,
        "n_input_tokens": 1.0,
        "n_output_tokens": 1.0,
        "ttft_ms": 1e-3,
        "latency_ms": 1e-3,
        "open_ms": 0.0,
        "itl_mean_ms": 1e-3,
    }
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Requests as columns of equal length.

    Attributes:
        model, gpu: Names. `source`: number of the file that a row came from.
        state: Shape (rows, len(STATE)); NaN where no result was known yet.
        itl_ms: Mean time between output tokens; NaN with fewer than two tokens.
    """

    model: NDArray[np.str_]
    gpu: NDArray[np.str_]
    source: NDArray[np.int64]
    n_gpus: Column
    users: Column
    start_ms: Column
    prompt: Column
    output: Column
    open_ms: Column
    ttft_ms: Column
    itl_ms: Column
    latency_ms: Column
    state: Column

    def __len__(self) -> int:
        return len(self.model)

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "Rows":
        """Returns the chosen rows, with the state they had among all."""
        return Rows(**{name: getattr(self, name)[chosen] for name in self.__slots__})

    @property
    def per_token_ms(self) -> Column:
        """Mean latency per token: from sending to the end, over the output tokens."""
        return self.latency_ms / self.output

    @property
    def tokens_per_s(self) -> Column:
        """The request's own throughput: output tokens over its latency."""
        return 1e3 * self.output / self.latency_ms

    def configurations(self) -> NDArray[np.str_]:
        """Returns a name of each row's configuration, such as `llama-7b/2xA100`."""
        return np.array([f"{m}/{int(n)}x{g}" for m, n, g in zip(self.model, self.n_gpus, self.gpu, strict=True)])

    def cells(self) -> NDArray[np.str_]:
        """Returns a name of each row's cell, such as `llama-7b/2xA100@16`."""
        return np.array([f"{name}@{int(users)}" for name, users in zip(self.configurations(), self.users, strict=True)])

    def starved(self) -> NDArray[np.bool_]:
        """Marks rows of cells in which almost only requests of the first moments ended: short ones, which represent no others.

        Closed-loop users send evenly over the run. If the median of the ended requests was sent in the first fifth, the rest never ended.
        """
        span_ms = float(np.max(self.start_ms + self.latency_ms)) if len(self) else 0.0
        found = np.zeros(len(self), dtype=bool)
        for _, index in groups(self.cells()):
            found[index] = np.median(self.start_ms[index]) < STARVED_BEFORE * span_ms
        return found


def groups(names: NDArray[np.str_]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yields each distinct name with its positions."""
    found, inverse = np.unique(names, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse, minlength=len(found)))
    for number, name in enumerate(found):
        yield str(name), order[ends[number - 1] if number else 0 : ends[number]]


def read_rows(paths: Sequence[Path]) -> Rows:
    """Reads files, plain or gzip, and computes the state of each row within its file.

    Raises:
        TraceError: A file cannot be read, a column is missing, or a value is out of range; names file, row, column and what is allowed.
    """
    texts: dict[str, list[str]] = {"model": [], "gpu_type": []}
    numbers: dict[str, list[float]] = {name: [] for name in (*NUMBERS, *OPTIONAL)}
    sources: list[int] = []
    for number, path in enumerate(paths):
        try:
            with _opened(path) as source:
                for at, record in _records(path, source):
                    for name, column in texts.items():
                        column.append(_text(path, at, name, record))
                    for name, values in numbers.items():
                        values.append(_number(path, at, name, record))
                    sources.append(number)
                    if len(sources) > MAX_ROWS:
                        raise TraceError(f"{path}: more than {MAX_ROWS} rows in all; allowed: up to that")
        except (OSError, EOFError) as error:
            raise TraceError(f"{path}: {error}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise TraceError(f"{path}: not a table of text: {error}") from error
    if not sources:
        raise TraceError(f"{', '.join(map(str, paths)) or 'no file'}: no rows; allowed: one request or more")
    columns = {name: np.array(values, dtype=np.float64) for name, values in numbers.items()}
    columns["itl_mean_ms"][columns["n_output_tokens"] < 2] = math.nan
    return with_state(
        Rows(
            model=np.array(texts["model"]),
            gpu=np.array(texts["gpu_type"]),
            source=np.array(sources, dtype=np.int64),
            n_gpus=columns["n_gpus"],
            users=columns["num_users"],
            start_ms=columns["start_offset_ms"],
            prompt=columns["n_input_tokens"],
            output=columns["n_output_tokens"],
            open_ms=np.nan_to_num(columns["open_ms"]),
            ttft_ms=columns["ttft_ms"],
            itl_ms=columns["itl_mean_ms"],
            latency_ms=columns["latency_ms"],
            state=np.full((len(sources), len(STATE)), math.nan),
        )
    )


def with_state(rows: Rows) -> Rows:
    """Returns the rows with their state: what earlier rows of the same cell and file had shown when each request was sent."""
    state = np.full((len(rows), len(STATE)), math.nan)
    first, end = rows.start_ms + rows.open_ms + rows.ttft_ms, rows.start_ms + rows.latency_ms
    names = np.char.add(rows.cells(), np.char.add("#", rows.source.astype(str)))
    for _, index in groups(names):
        state[index] = state_of(
            users=rows.users[index],
            output=rows.output[index],
            start_ms=rows.start_ms[index],
            first_ms=first[index],
            end_ms=end[index],
            ttft_ms=rows.ttft_ms[index],
            itl_ms=rows.itl_ms[index],
        )
    return Rows(**{name: getattr(rows, name) for name in rows.__slots__ if name != "state"}, state=state)


def _opened(path: Path) -> TextIO:
    with path.open("rb") as source:
        packed = source.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8", newline="") if packed else path.open(encoding="utf-8", newline="")


def _records(path: Path, source: Iterable[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    reader = csv.DictReader(source)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or []) and name not in OPTIONAL]
    if missing:
        raise TraceError(f"{path}: no column {missing[0]!r}; allowed: a table with {', '.join(COLUMNS)} (the last two may be empty)")
    yield from enumerate(reader, start=2)


def _text(path: Path, at: int, name: str, record: Mapping[str, str]) -> str:
    value = (record.get(name) or "").strip()
    if not 1 <= len(value) <= 200:
        raise TraceError(f"{path}, line {at}: {name} is {value[:50]!r}; allowed: 1 to 200 characters")
    return value


def _number(path: Path, at: int, name: str, record: Mapping[str, str]) -> float:
    text = (record.get(name) or "").strip()
    if not text and name in OPTIONAL:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) and name in OPTIONAL:
        return math.nan
    if not (math.isfinite(value) and value >= _LEAST[name]):
        raise TraceError(f"{path}, line {at}: {name} is {text[:50]!r}; allowed: numbers from {_LEAST[name]:g}")
    return value
