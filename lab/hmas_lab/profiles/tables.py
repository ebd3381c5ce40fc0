"""Measured kernel latencies of one GPU: NVIDIA aiconfigurator's tables (Apache-2.0), taken on vLLM 0.14.0 kernels.

Files, in `profiles/` of the data folder: `aic_gemm.csv.gz`, `aic_attention.csv.gz`, `aic_comm.csv.gz`. The product runs without them; only
making new profiles needs them.
"""

import csv
import gzip
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import exp, log
from pathlib import Path

from hmas.engines.errors import ProfileError
from hmas_lab.profiles.curves import Line, Sheet, between
from hmas_lab.profiles.spikes import Point, without_spikes

DATA_ENV = "HMAS_DATA_DIR"

HEAD_DIM = 128
"""The one head size that attention was measured for."""

Points = list[tuple[int, float]]
Heads = tuple[int, int]


class Tables:
    """Latencies of one GPU's kernels in ms, interpolated between what was measured.

    Attributes:
        gpu: Name of the GPU.
        dtypes: Dtypes that GEMMs were measured in.
    """

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu
        self._gemm_points: dict[str, dict[Point, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._attention_points: dict[str, dict[Heads, dict[Point, list[float]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        self._reduce_points: dict[int, Points] = defaultdict(list)
        self._gemms: dict[str, _Gemms] = {}
        self._sheets: dict[tuple[str, Heads], Sheet] = {}
        self._reduce_lines: dict[int, Line] = {}

    @property
    def dtypes(self) -> list[str]:
        """Dtypes that GEMMs were measured in."""
        return sorted(self._gemm_points)

    def gemm_ms(self, dtype: str, m: float, n: int, k: int) -> float:
        """One GEMM of `m` tokens by an `n x k` matrix. Beyond the largest measured `n` or `k` the time grows in proportion."""
        return self._gemm(dtype).ms(m, n, k)

    def gemm_spikes(self, dtype: str) -> tuple[int, int]:
        """GEMM measurements that were not believed, and all there are."""
        return self._gemm(dtype).spikes, len(self._gemm_points[dtype])

    def prefill_sheet(self, heads: int, kv_heads: int) -> "Blend":
        """Causal attention of whole prompts in one layer: (prompts, tokens each) -> ms."""
        if heads == kv_heads:
            near_heads = between(sorted(h for h, kv in self._attention_points["context_attention"] if h == kv), heads)
            return Blend([(self._sheet("context_attention", (near, near)), weight) for near, weight in near_heads])
        return self._blend("context_attention", heads, kv_heads)

    def decode_sheet(self, heads: int, kv_heads: int) -> "Blend":
        """Attention of one new token per sequence in one layer: (sequences, cached tokens each) -> ms.

        With more KV heads than were measured, `f` times as many as a measured number, a sequence counts as `f` sequences of that number:
        such kernels spread over sequences and KV heads alike, and read the same bytes.
        """
        return self._blend("generation_attention", heads, kv_heads)

    def all_reduce_ms(self, gpus: int, elements: float) -> float:
        """All-reduce of 16-bit elements among `gpus`; vLLM's own kernel, or NCCL where vLLM falls back to it."""
        if gpus not in self._reduce_lines:
            if gpus not in self._reduce_points:
                raise ProfileError(f"{self.gpu}: no all-reduce was measured for tp {gpus}; allowed: {sorted(self._reduce_points)}")
            self._reduce_lines[gpus] = Line(self._reduce_points[gpus])
        return self._reduce_lines[gpus].ms(elements)

    def add(self, kind: str, row: dict[str, str]) -> None:
        """Takes up one row of the file of that kind (`gemm`, `attention`, `comm`); rows that no profile needs are passed over."""
        if kind == "gemm":
            self._gemm_points[row["gemm_dtype"]][int(row["m"]), int(row["n"]), int(row["k"])].append(float(row["latency_ms"]))
        elif kind == "attention":
            if row["kv_cache_dtype"] == "bfloat16" and int(row["head_dim"]) == HEAD_DIM:
                heads = (int(row["num_heads"]), int(row["num_key_value_heads"]))
                point = (int(row["batch_size"]), int(row["isl"]) + int(row["step"]))
                self._attention_points[row["op_name"]][heads][point].append(float(row["latency_ms"]))
        elif row["op_name"] == "all_reduce" and row["kernel_source"] == "vLLM_custom_graph":
            self._reduce_points[int(row["num_gpus"])].append((int(row["message_elements"]), float(row["latency_ms"])))

    def _gemm(self, dtype: str) -> "_Gemms":
        if dtype not in self._gemms:
            self._gemms[dtype] = _Gemms(self._gemm_points[dtype])
        return self._gemms[dtype]

    def _sheet(self, op: str, heads: Heads) -> Sheet:
        if (op, heads) not in self._sheets:
            growth = 2.0 if op == "context_attention" else 1.0
            rows: dict[int, Points] = defaultdict(list)
            for (seqs, tokens), ms in without_spikes(_means(self._attention_points[op][heads]))[0].items():
                rows[seqs].append((tokens, ms))
            self._sheets[op, heads] = Sheet({seqs: Line(points, growth) for seqs, points in rows.items()})
        return self._sheets[op, heads]

    def _blend(self, op: str, heads: int, kv_heads: int) -> "Blend":
        group = heads // kv_heads
        measured = self._attention_points[op]
        for fold in range(1, kv_heads + 1):
            kv = kv_heads // fold
            query = sorted(h for h, count in measured if count == kv)
            if kv_heads % fold == 0 and query and query[0] <= group * kv <= query[-1]:
                return Blend([(self._sheet(op, (near, kv)), weight) for near, weight in between(query, group * kv)], fold)
        raise ProfileError(f"{self.gpu}: no {op} near {heads} query and {kv_heads} KV heads was measured; use a data-sheet profile")


def _means(points: Mapping[Point, list[float]]) -> dict[Point, float]:
    return {point: sum(ms) / len(ms) for point, ms in points.items()}


class _Gemms:
    """One dtype's GEMMs, without spikes."""

    def __init__(self, points: Mapping[Point, list[float]]) -> None:
        clean, self.spikes = without_spikes(_means(points))
        by_shape: dict[tuple[int, int], Points] = defaultdict(list)
        for (m, n, k), ms in clean.items():
            by_shape[n, k].append((m, ms))
        self._lines = {shape: Line(line) for shape, line in by_shape.items()}
        self._ks = sorted({k for _, k in by_shape})
        self._ns = {near: sorted(n for n, k in by_shape if k == near) for near in self._ks}

    def ms(self, m: float, n: int, k: int) -> float:
        total = 0.0
        for near_k, weight_k in between(self._ks, k):
            ns = self._ns[near_k]
            beyond = log(max(1.0, n / ns[-1]) * max(1.0, k / self._ks[-1]))
            for near_n, weight_n in between(ns, n):
                total += weight_k * weight_n * (self._lines[near_n, near_k].log_ms(m) + beyond)
        return exp(total)


class Blend:
    """Latency against (sequences, tokens each), from the sheets of the nearest numbers of heads.

    Args:
        sheets: Each with its weight in the logarithm.
        fold: Sequences that one sequence counts for.
    """

    def __init__(self, sheets: list[tuple[Sheet, float]], fold: int = 1) -> None:
        self._sheets = sheets
        self.fold = fold

    def covers(self, seqs: int, tokens: int) -> bool:
        """The point lies among measurements, not beyond them."""
        return all(sheet.covers(seqs * self.fold, tokens) for sheet, _ in self._sheets)

    def ms(self, seqs: float, tokens: float) -> float:
        """The latency of one layer."""
        result = 1.0
        for sheet, weight in self._sheets:
            result *= sheet.ms(seqs * self.fold, tokens) ** weight
        return result


def data_folder(named: str | Path | None = None) -> Path:
    """The folder with the measured tables: `profiles/` of the folder named, else of HMAS_DATA_DIR.

    Raises:
        ProfileError: Neither is given, or the tables are not there.
    """
    root = named or os.environ.get(DATA_ENV)
    if not root:
        raise ProfileError(f"no folder of measured data: give --data or set {DATA_ENV}")
    folder = Path(root) / "profiles"
    if not (folder / "aic_gemm.csv.gz").is_file():
        raise ProfileError(f"{folder}: aic_gemm.csv.gz is not there; allowed: a folder with profiles/aic_gemm.csv.gz and its companions")
    return folder


def read_tables(folder: Path, gpu: str | None = None) -> dict[str, Tables]:
    """The measured tables by the GPU's name.

    Args:
        folder: What `data_folder` returns.
        gpu: The one GPU that is wanted; all by default.

    Raises:
        ProfileError: A file is missing, a row is not what it should be (names file and row), or the GPU was not measured.
    """
    tables: dict[str, Tables] = {}
    for kind in ("gemm", "attention", "comm"):
        path = folder / f"aic_{kind}.csv.gz"
        for number, row in _rows(path, gpu):
            try:
                tables.setdefault(row["gpu"], Tables(row["gpu"])).add(kind, row)
            except (KeyError, ValueError) as error:
                raise ProfileError(f"{path.name}, row {number}: {error!r}; allowed: the columns of aiconfigurator's tables") from error
    if gpu is not None and gpu not in tables:
        raise ProfileError(f"gpu {gpu!r} was not measured; allowed: one that {folder}/aic_gemm.csv.gz has, or a data-sheet profile")
    return tables


def _rows(path: Path, gpu: str | None) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with their numbers in the file, those of one GPU or all."""
    try:
        with gzip.open(path, "rt", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            for number, cells in enumerate(reader, 2):
                if gpu is None or gpu in cells:
                    yield number, dict(zip(header, cells, strict=False))
    except (OSError, EOFError) as error:
        raise ProfileError(f"{path}: {error}") from error
