"""A workload as columns: one row per request, in order of arrival. A million rows take about forty megabytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.simulation import Arrival
from hmas.workloads.columns import COLUMNS, DTYPES, Column, Floats, check_columns

HASH_TOKENS = 512

Blocks = tuple[tuple[int, ...], ...]
Believe = Callable[[Request, float], Estimates]

_SLICE = 8192


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
        block_hashes: Ids of each prompt's blocks of `hash_tokens` tokens: equal leading ids are a shared prefix. None if unknown.

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
    hash_tokens: int = HASH_TOKENS

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
        if self.hash_tokens < 1:
            raise TraceError(f"{self.name}: hash_tokens is {self.hash_tokens}; allowed: 1 or more")
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
                if self.block_hashes is None:
                    yield Arrival(request=request, estimate=believe, output_tokens=output)
                else:
                    hashes = self.block_hashes[row]
                    yield Arrival(
                        request=request, estimate=believe, output_tokens=output, block_hashes=hashes, hash_tokens=self.hash_tokens
                    )


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
