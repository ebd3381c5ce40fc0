"""Reads logs of text-generation-inference in LLM-Pilot's form: one row per request, and one summary row per run."""

import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, median

import msgspec
import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.profiling.coefficients import Floats

Deployment = tuple[str, str, int]
"""Model, GPU, number of GPUs."""

REQUEST_COLUMNS = ("model", "gpu_type", "n_gpus", "num_users", "n_input_tokens", "n_output_tokens", "open_ms", "ttft_ms", "latency_ms")
SUMMARY_COLUMNS = ("model", "gpu", "n_gpus", "num_users", "duration_s", "out_tok_per_s", "ttft_median_ms", "itl_median_ms")
SECONDS = 120.0
COVERED = 0.8
"""Least share of the users' time that the requests of a whole log fill."""
_MAX_TOKENS = 1 << 20
_RESAMPLED = 1000


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a run showed.

    Attributes:
        tpot_ms: Median time between two tokens of a stream (ITL). `gap_mean_ms`: their mean, which holds what medians do not see: the steps
            in which a stream stood still.
        ttft_ms: Median time from the stream's opening to its first token.
        tokens_per_s: Output tokens of finished requests over the run's time.
        sampled: Whether the figures are of a sample of the run's requests (no summary row was there).
    """

    tpot_ms: float
    gap_mean_ms: float
    ttft_ms: float
    tokens_per_s: float
    sampled: bool = False


class PilotRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run: so many users, each sending its next request when the one before has been answered.

    Attributes:
        deployment: Model, GPU, number of GPUs.
        users: Closed-loop users.
        lengths: (prompt, output) tokens of its requests, as sampled in the log, balanced to the mean output of all its requests.
        first_ms: (prompt tokens, TTFT) of the sampled requests.
        opens_ms: How long it took until their streams were open; the log counts the TTFT from there.
        seconds: How long the run was.
        covered: Share of the users' time that the logged requests fill, about 1 in a whole log. Far less: requests were under way, or
            failed, that left no row, and the figures are of those that did.
        measured: None where the files hold no figures of it.
    """

    deployment: Deployment
    users: int
    lengths: tuple[tuple[int, int], ...]
    first_ms: tuple[tuple[int, float], ...]
    opens_ms: tuple[float, ...]
    seconds: float
    covered: float
    measured: Measured | None

    @property
    def whole(self) -> bool:
        """Whether the log covers the users' time, so that its figures are those of the load."""
        return self.covered >= COVERED


class _Rows(msgspec.Struct):
    """What the files say about one run so far."""

    lengths: list[tuple[int, int]] = []
    opens_ms: list[float] = []
    ttfts_ms: list[float] = []
    itls_ms: list[float] = []
    means_ms: list[float] = []
    latencies_ms: list[float] = []
    summary: "_Summary | None" = None


class _Summary(msgspec.Struct, frozen=True):
    """One row of a summary file; 0 for counts that it does not hold."""

    seconds: float
    requests: float
    output_tokens: float
    measured: Measured


def read_pilot(paths: Iterable[Path]) -> list[PilotRun]:
    """All runs in these files, by deployment and users.

    A file holds rows of requests or of summaries, told apart by its columns, plain or gzipped. Runs of several files are put together;
    a run with a summary is measured by it (it covers every request), one without by its sampled requests.

    Raises:
        TraceError: A file cannot be read, lacks a column, or a value is no number in range; names file, row and column.
    """
    found: dict[tuple[Deployment, int], _Rows] = {}
    for path in paths:
        reader = _reader(path)
        columns = set(reader.fieldnames or ())
        if columns >= set(REQUEST_COLUMNS):
            _read_requests(path, reader, found)
        elif columns >= set(SUMMARY_COLUMNS):
            _read_summaries(path, reader, found)
        else:
            raise TraceError(
                f"{path}: columns {', '.join(sorted(columns)) or 'none'}; allowed: {', '.join(REQUEST_COLUMNS)} (one row per request), "
                f"or {', '.join(SUMMARY_COLUMNS)} (one per run)"
            )
    return [_run(key, rows) for key, rows in sorted(found.items())]


def _reader(path: Path) -> "csv.DictReader[str]":
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        return csv.DictReader(io.StringIO(text.decode("utf-8")))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _read_requests(path: Path, rows: Iterable[dict[str, str]], found: dict[tuple[Deployment, int], _Rows]) -> None:
    for number, row in enumerate(rows, 2):
        run = found.setdefault(_key(path, number, row, "gpu_type"), _Rows())
        prompt = int(_number(path, number, row, "n_input_tokens", (1, _MAX_TOKENS)))
        output = int(_number(path, number, row, "n_output_tokens", (1, _MAX_TOKENS)))
        run.lengths.append((prompt, output))
        run.opens_ms.append(_number(path, number, row, "open_ms", (0, 1e7)))
        run.ttfts_ms.append(_number(path, number, row, "ttft_ms", (0, 1e7)))
        run.latencies_ms.append(_number(path, number, row, "latency_ms", (0, 1e7)))
        if row.get("itl_median_ms"):
            run.itls_ms += [_number(path, number, row, "itl_median_ms", (0, 1e7))] * (output - 1)
            mean = "itl_mean_ms" if row.get("itl_mean_ms") else "itl_median_ms"
            run.means_ms += [_number(path, number, row, mean, (0, 1e7))] * (output - 1)


def _read_summaries(path: Path, rows: Iterable[dict[str, str]], found: dict[tuple[Deployment, int], _Rows]) -> None:
    for number, row in enumerate(rows, 2):
        run = found.setdefault(_key(path, number, row, "gpu"), _Rows())
        measured = Measured(
            tpot_ms=_number(path, number, row, "itl_median_ms", (1e-6, 1e7)),
            gap_mean_ms=_number(path, number, row, "itl_mean_ms" if row.get("itl_mean_ms") else "itl_median_ms", (1e-6, 1e7)),
            ttft_ms=_number(path, number, row, "ttft_median_ms", (1e-6, 1e7)),
            tokens_per_s=_number(path, number, row, "out_tok_per_s", (1e-6, 1e9)),
        )
        run.summary = _Summary(
            _number(path, number, row, "duration_s", (1e-3, 1e6)),
            _number(path, number, row, "n_requests", (0, 1e9)) if row.get("n_requests") else 0.0,
            _number(path, number, row, "out_tokens_total", (0, 1e12)) if row.get("out_tokens_total") else 0.0,
            measured,
        )


def _run(key: tuple[Deployment, int], rows: _Rows) -> PilotRun:
    deployment, users = key
    summary = rows.summary
    outputs = np.array([output for _, output in rows.lengths], dtype=np.float64)
    weights = np.ones(len(outputs))
    if summary is not None and summary.requests and len(outputs):
        weights = balanced(outputs, summary.output_tokens / summary.requests)
    covered = 1.0
    if len(outputs) and summary is not None and summary.requests:
        covered = summary.requests * float(np.average(rows.latencies_ms, weights=weights)) / (1e3 * users * summary.seconds)
    return PilotRun(
        deployment=deployment,
        users=users,
        lengths=_resampled(rows.lengths, weights),
        first_ms=tuple((prompt, ttft_ms) for (prompt, _), ttft_ms in zip(rows.lengths, rows.ttfts_ms, strict=True)),
        opens_ms=tuple(rows.opens_ms),
        seconds=SECONDS if summary is None else summary.seconds,
        covered=covered,
        measured=_from_requests(users, rows) if summary is None else summary.measured,
    )


def balanced(outputs: Floats, mean: float) -> Floats:
    """Weights of a sample under which its mean is `mean`, as even as can be: exponential tilting, the least change in entropy.

    A few hundred requests of a heavy-tailed load miss the mean of all by a tenth or more, and throughput with it. Where the mean lies
    outside the sample, or needs weights beyond 1 : 20, the sample is left as it is.
    """
    if not outputs.min() < mean < outputs.max():
        return np.ones(len(outputs))
    low, high = -3.0 / outputs.max(), 3.0 / outputs.max()
    for _ in range(60):
        middle = 0.5 * (low + high)
        weights = np.exp(middle * outputs)
        low, high = (middle, high) if np.average(outputs, weights=weights) < mean else (low, middle)
    weights = np.exp(0.5 * (low + high) * outputs)
    return weights if abs(np.average(outputs, weights=weights) / mean - 1.0) < 0.02 else np.ones(len(outputs))


def _resampled(lengths: list[tuple[int, int]], weights: Floats) -> tuple[tuple[int, int], ...]:
    """A thousand lengths in which each of the sample stands as often as its weight says; the sample itself where all weigh the same."""
    if not lengths or np.ptp(weights) < 1e-12:
        return tuple(lengths)
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index][1], lengths[index][0]))
    total = np.cumsum(weights[order])
    places = (np.arange(_RESAMPLED) + 0.5) / _RESAMPLED * total[-1]
    return tuple(lengths[order[int(at)]] for at in np.searchsorted(total, places))


def _from_requests(users: int, rows: _Rows) -> Measured | None:
    """Figures of a run without a summary. Throughput by Little's law: each user has one request under way, always."""
    if not rows.itls_ms or not rows.ttfts_ms or fmean(rows.latencies_ms) <= 0:
        return None
    outputs = fmean(output for _, output in rows.lengths)
    return Measured(
        tpot_ms=median(rows.itls_ms),
        gap_mean_ms=fmean(rows.means_ms),
        ttft_ms=median(rows.ttfts_ms),
        tokens_per_s=users * outputs / (1e-3 * fmean(rows.latencies_ms)),
        sampled=True,
    )


def _key(path: Path, number: int, row: dict[str, str], gpu: str) -> tuple[Deployment, int]:
    gpus = int(_number(path, number, row, "n_gpus", (1, 1024)))
    users = int(_number(path, number, row, "num_users", (1, 100_000)))
    return (row["model"], row[gpu], gpus), users


def _number(path: Path, number: int, row: dict[str, str], column: str, allowed: tuple[float, float]) -> float:
    low, high = allowed
    text = row.get(column) or ""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise TraceError(f"{path}: row {number}, {column} {text!r}: allowed are numbers from {low:g} to {high:g}")
    return value


def by_deployment(runs: Iterable[PilotRun]) -> Iterator[tuple[Deployment, dict[int, PilotRun]]]:
    """Runs of each deployment by users, in order."""
    grouped: dict[Deployment, dict[int, PilotRun]] = {}
    for run in runs:
        grouped.setdefault(run.deployment, {})[run.users] = run
    yield from sorted(grouped.items())
