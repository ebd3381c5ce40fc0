"""Reads ML.ENERGY's steady-state sweeps of vLLM: time per token against batch size."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import msgspec

from hmas.controller.core.errors import TraceError

COLUMNS = (
    "gpu_model",
    "model_id",
    "num_gpus",
    "tensor_parallel",
    "expert_parallel",
    "data_parallel",
    "weight_precision",
    "task",
    "max_num_seqs",
    "avg_batch_size",
    "avg_output_len",
    "median_itl_ms",
    "output_throughput_tokens_per_sec",
)


class Sweep(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What stays the same over the batch sizes of one sweep."""

    gpu: str
    model: str
    gpus: int
    tp: int
    ep: int
    dp: int
    dtype: str
    task: str

    @property
    def engine(self) -> tuple[str, str, int, int, int, int, str]:
        """The engine, whatever it was asked: sweeps of several tasks share its step time."""
        return (self.gpu, self.model, self.gpus, self.tp, self.ep, self.dp, self.dtype)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep; repeated runs at one batch size are one point, their mean.

    Attributes:
        batch: The engine's limit on sequences, which the load kept filled.
        running: Mean number that really ran.
        output_tokens: Mean length of an answer.
        itl_ms: Median time between tokens.
        tokens_per_s: Output tokens per second.
    """

    batch: int
    running: float
    output_tokens: float
    itl_ms: float
    tokens_per_s: float


def read_energy(path: Path, *, gpu: str = "H100") -> dict[Sweep, list[Point]]:
    """The sweeps on one GPU, each by rising batch size.

    Raises:
        TraceError: The file cannot be read, lacks a column, or a value is no number above 0; names row and column.
    """
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    missing = sorted(set(COLUMNS) - set(reader.fieldnames or ()))
    if missing:
        raise TraceError(f"{path}: lacks the columns {', '.join(missing)}")
    runs: dict[Sweep, dict[int, list[Point]]] = {}
    for number, row in enumerate(reader, 2):
        if row["gpu_model"] != gpu:
            continue
        sweep = Sweep(
            gpu=gpu,
            model=row["model_id"],
            gpus=int(_number(path, number, row, "num_gpus")),
            tp=int(_number(path, number, row, "tensor_parallel")),
            ep=int(_number(path, number, row, "expert_parallel")),
            dp=int(_number(path, number, row, "data_parallel")),
            dtype=row["weight_precision"],
            task=row["task"],
        )
        point = Point(
            batch=int(_number(path, number, row, "max_num_seqs")),
            running=_number(path, number, row, "avg_batch_size"),
            output_tokens=_number(path, number, row, "avg_output_len"),
            itl_ms=_number(path, number, row, "median_itl_ms"),
            tokens_per_s=_number(path, number, row, "output_throughput_tokens_per_sec"),
        )
        runs.setdefault(sweep, {}).setdefault(point.batch, []).append(point)
    return {sweep: [_mean(points[batch]) for batch in sorted(points)] for sweep, points in sorted(runs.items())}


def _mean(points: Iterable[Point]) -> Point:
    listed = list(points)
    return Point(
        batch=listed[0].batch,
        running=fmean(p.running for p in listed),
        output_tokens=fmean(p.output_tokens for p in listed),
        itl_ms=fmean(p.itl_ms for p in listed),
        tokens_per_s=fmean(p.tokens_per_s for p in listed),
    )


def _number(path: Path, number: int, row: dict[str, str], column: str) -> float:
    text = row.get(column) or ""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1e9:
        raise TraceError(f"{path}: row {number}, {column} {text!r}: allowed are numbers above 0")
    return value
