"""A workload as columns: one row per request, in order of arrival. A million rows take about forty megabytes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from hmas.controller.core.errors import TraceError
from hmas.controller.core.slo import BASE_SLO, IMPORTANCE_MAX, IMPORTANCE_MIN, SPREAD
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.simulation import Arrival
from hmas.loadgen.requests import TASKS, Column, Floats, Requests
from hmas.loadgen.traces import MAX_TOKENS
from hmas.loadgen.workload import draw_importances
from hmas.workloads.options import Options

Where = Callable[[int], str]
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

HASH_TOKENS = 512
Blocks = tuple[tuple[int, ...], ...]
Believe = Callable[[Request, float], Estimates]
_SLICE = 8192


def check_columns(name: str, columns: Mapping[str, Column], *, tenants: int, duration_s: float, where: Where) -> None:
    """Checks each of `COLUMNS`, of any numeric type, against its range. A `duration_s` of 0 is to be computed.

    `where` names a row in error messages by its index from 0, beside the workload's or file's name.

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """The requests of a workload. The columns are read-only arrays of one length, checked and cast at construction.

    Attributes:
        name: Its name, for reports.
        at_s: Arrival, seconds from the start of the run, 0 or more, ascending.
        prompt_tokens, output_tokens: True lengths, 1 to 10 million. Only the engine may use the output's.
        max_tokens: The cap that the client declares, at least the output's length.
        task: Index into `TASKS`.
        importance: 0.5 to 1 (H-MAS E.5).
        slo_ttft_ms, slo_tpot_ms: Targets that the client declares, more than 0.
        tenant: Index into `tenants`.
        session: Number of the conversation, -1 for none.
        tenants: Names of the tenants.
        duration_s: Length of the arrival process: the mean rate is `len(workload) / duration_s`. 0 for the last arrival plus one mean
            gap.
        block_hashes: Ids of each prompt's blocks of `HASH_TOKENS` tokens: equal leading ids are a shared prefix. None if unknown.

    Raises:
        TraceError: A value is out of range, missing (NaN) or out of order; the error names row, field, value and what is allowed.
    """

    name: str
    at_s: Column
    prompt_tokens: Column
    output_tokens: Column
    max_tokens: Column
    task: Column
    importance: Column
    slo_ttft_ms: Column
    slo_tpot_ms: Column
    tenant: Column
    session: Column
    tenants: tuple[str, ...]
    duration_s: float = 0.0
    block_hashes: Blocks | None = None

    def __post_init__(self) -> None:
        check_columns(
            self.name,
            {field: np.asarray(getattr(self, field)) for field in COLUMNS},
            tenants=len(self.tenants),
            duration_s=self.duration_s,
            where=lambda row: f"row {row + 1}",
        )
        if self.block_hashes is not None and len(self.block_hashes) != len(self.at_s):
            raise TraceError(f"{self.name}: block_hashes holds {len(self.block_hashes)} rows; allowed: {len(self.at_s)}, one per request")
        for field, dtype in DTYPES.items():
            column = np.asarray(getattr(self, field)).astype(dtype, copy=False).view()
            column.setflags(write=False)
            object.__setattr__(self, field, column)
        if self.duration_s <= 0.0:
            object.__setattr__(self, "duration_s", span_s(self.at_s))

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def rate_rps(self) -> float:
        """Mean rate, requests per second."""
        return len(self) / self.duration_s

    def scaled(self, rate: float) -> "Workload":
        """The same requests with their times scaled to a mean rate, requests per second.

        Raises:
            TraceError: The rate is not above 0, or there is no request to scale.
        """
        if not (rate > 0.0 and np.isfinite(rate)):
            raise TraceError(f"{self.name}: rate is {rate}; allowed: a finite number of requests per second above 0")
        if not len(self):
            raise TraceError(f"{self.name}: holds no requests, so no rate can be set")
        factor = self.rate_rps / rate
        return replace(self, at_s=self.at_s * factor, duration_s=self.duration_s * factor)

    def window(self, start_s: float = 0.0, end_s: float | None = None) -> "Workload":
        """The requests from `start_s` up to `end_s` (exclusive; None for the end), with times relative to `start_s`.

        Raises:
            TraceError: The window is empty or outside the workload.
        """
        until_s = self.duration_s if end_s is None else end_s
        if not 0.0 <= start_s < until_s <= self.duration_s:
            raise TraceError(f"{self.name}: window is {start_s} s to {until_s} s; allowed: 0 <= start < end <= {self.duration_s:g} s")
        first = int(np.searchsorted(self.at_s, start_s, side="left"))
        last = len(self) if end_s is None else int(np.searchsorted(self.at_s, until_s, side="left"))
        cut = self.rows(first, last)
        return replace(cut, at_s=cut.at_s - start_s, duration_s=until_s - start_s)

    def rows(self, first: int, last: int) -> "Workload":
        """Rows `first` to `last` (exclusive), with times and duration unchanged."""
        columns = {field: getattr(self, field)[first:last] for field in COLUMNS}
        blocks = None if self.block_hashes is None else self.block_hashes[first:last]
        return replace(self, **columns, block_hashes=blocks)

    def arrivals(self, *, model: str, estimate: Believe | None = None) -> Iterator[Arrival]:
        """The arrivals for a simulation, made one at a time.

        Args:
            model: The model that every request names.
            estimate: Estimates of a request at its arrival; by default the prior of an empty history with the declared SLO.
        """
        believe = estimate or prior()
        for start in range(0, len(self), _SLICE):
            part = slice(start, start + _SLICE)
            lists = (getattr(self, field)[part].tolist() for field in _REQUEST_COLUMNS)
            for row, (at_s, prompt, output, cap, ttft_ms, tpot_ms, tenant, session) in enumerate(zip(*lists, strict=True), start):
                request = Request(
                    id=f"{row:09d}",
                    tenant=self.tenants[tenant],
                    model=model,
                    arrival_s=at_s,
                    prompt_tokens=prompt,
                    max_output_tokens=cap,
                    declared_slo=Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms),
                    session="" if session < 0 else str(session),
                )
                hashes = () if self.block_hashes is None else self.block_hashes[row]
                yield Arrival(request=request, estimate=believe, output_tokens=output, block_hashes=hashes, hash_tokens=HASH_TOKENS)


_REQUEST_COLUMNS = ("at_s", "prompt_tokens", "output_tokens", "max_tokens", "slo_ttft_ms", "slo_tpot_ms", "tenant", "session")


def prior() -> Believe:
    """The estimates of a gateway without history: the fixed defaults with the declared SLO."""
    history = History()
    return lambda request, _now_s: history.estimate(request)


def span_s(at_s: Floats) -> float:
    """Length of an arrival process: from 0 to the last arrival, plus one mean gap; 1 s if that is 0."""
    if not len(at_s):
        return 1.0
    last_s = float(at_s[-1])
    gap_s = (last_s - float(at_s[0])) / (len(at_s) - 1) if len(at_s) > 1 else last_s
    return last_s + gap_s or 1.0


def annotate(
    name: str,
    at_s: Floats,
    requests: Requests,
    options: Options,
    *,
    duration_s: float = 0.0,
    block_hashes: Blocks | None = None,
) -> Workload:
    """Makes the workload of these times and requests.

    Importance is uniform between 0.5 and 1 (H-MAS E.5), from a separate random stream; the SLO follows from it and the task. If
    `options.context` is given, prompt, output and cap are cut as in `hmas.loadgen.workload.fit`.
    """
    count = len(at_s)
    importance = draw_importances(options.seed, count).astype(np.float32)
    ttft_ms, tpot_ms = slo_columns(requests.task, importance, options.slo_scale)
    prompt, output, cap = requests.prompt_tokens, requests.output_tokens, requests.max_tokens
    if options.context:
        cap = np.minimum(cap, max(1, options.context // 4))
        prompt = np.clip(prompt, 1, np.maximum(1, int(options.context * 0.95) - cap))
        output = np.clip(output, 1, cap)
        if block_hashes is not None:
            # A cut prompt ends in the block of the cut; later ids would name tokens that it does not have.
            blocks = (-(-prompt // HASH_TOKENS)).tolist()
            block_hashes = tuple(ids[:most] for ids, most in zip(block_hashes, blocks, strict=True))
    return Workload(
        name=name,
        at_s=at_s,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=cap,
        task=requests.task,
        importance=importance,
        slo_ttft_ms=np.full(count, options.ttft_ms) if options.ttft_ms else ttft_ms,
        slo_tpot_ms=np.full(count, options.tpot_ms) if options.tpot_ms else tpot_ms,
        tenant=requests.tenant,
        session=np.full(count, -1),
        tenants=requests.tenants,
        duration_s=duration_s,
        block_hashes=block_hashes,
    )


def slo_columns(task: Column, importance: Column, scale: float) -> tuple[Floats, Floats]:
    """`hmas.controller.core.slo.slo_for` for columns: TTFT and TPOT targets by Table 6 and Eq. 14, in whole milliseconds."""
    share = np.clip((importance.astype(float) - IMPORTANCE_MIN) / (IMPORTANCE_MAX - IMPORTANCE_MIN), 0.0, 1.0)
    factor = (1.0 + SPREAD * (1.0 - 2.0 * share)) * scale
    ttft_ms = np.array([BASE_SLO[t].ttft_ms for t in TASKS])[task]
    tpot_ms = np.array([BASE_SLO[t].tpot_ms for t in TASKS])[task]
    return np.maximum(1.0, np.floor(ttft_ms * factor)), np.maximum(1.0, np.floor(tpot_ms * factor))
