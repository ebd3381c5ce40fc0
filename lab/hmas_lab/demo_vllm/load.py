"""The load of the comparison on a real engine: a trace's own requests, at the rate and in the bursts that are wanted."""

from collections.abc import Sequence

import msgspec
import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.loadgen.arrivals import ArrivalSpec, cumulative_rate
from hmas.loadgen.dataset import Mixture, PromptData
from hmas.loadgen.replaying import ReplaySpec, arrivals_from_trace
from hmas.loadgen.traces import Trace, TraceRow
from hmas.loadgen.workload import Arrival
from hmas_lab.demo_vllm.settings import FieldSettings

KIND = "conv"
"""Kind of traffic in datasets/mixed.json that the trace is taken for."""


_BACKLOG_STRIDE = 12


class FieldLoad:
    """Cuts pieces out of a trace, one after the other, and turns each into arrivals. The same settings give the same arrivals."""

    def __init__(self, trace: Trace, settings: FieldSettings, mixture: Mixture, prompts: PromptData) -> None:
        """Takes a trace with arrival times and lengths.

        Raises:
            TraceError: A row has no time or no lengths.
        """
        if any(row.at_s is None or row.prompt_tokens is None or row.output_tokens is None for row in trace.rows):
            raise TraceError(f"{trace.source}: every row needs a time, a prompt length and an output length for this comparison")
        self._trace = trace
        self._settings = settings
        self._mixture = mixture
        self._prompts = prompts

    def backlog(self) -> list[Arrival]:
        """Requests that are all there at once, for measuring capacity: spread over the part of the trace that the runs come from.

        Lengths drift along a trace: with outputs that are a quarter shorter, a capacity would promise a quarter too much.
        """
        rows = self._scaled(self._trace.rows[: _BACKLOG_STRIDE * self._settings.backlog : _BACKLOG_STRIDE])
        return [msgspec.structs.replace(a, at_s=0.0) for a in self._arrivals(rows, slo_scale=1.0)]

    def piece(self, number: int, *, mean_rps: float, duration_s: float, slo_scale: float) -> list[Arrival]:
        """The trace's piece `number`, its times bent so that the mean rate alternates between `high` and `low`.

        The trace's own order and its own gaps stay, relative to the rate of the moment: time runs through it by the cumulative rate.

        Raises:
            TraceError: The trace is too short for that many pieces.
        """
        settings = self._settings
        spec = ArrivalSpec(
            mean_rps=mean_rps, duration_s=duration_s, process="bursty", period_s=settings.period_s, high=settings.high, low=settings.low
        )
        edges, cumulative = cumulative_rate(spec)
        count = int(cumulative[-1])
        start = number * count
        rows = self._trace.rows[start : start + count]
        if len(rows) < count:
            raise TraceError(f"{self._trace.source} holds {len(self._trace.rows)} rows; piece {number} of {count} needs more")
        own = np.array([row.at_s or 0.0 for row in rows])
        marks = (own - own[0]) / max(own[-1] - own[0], 1e-9) * (count - 1)
        times = np.interp(marks, cumulative, edges)
        bent = [msgspec.structs.replace(row, at_s=float(t)) for row, t in zip(self._scaled(rows), times, strict=True)]
        return self._arrivals(bent, slo_scale=slo_scale)

    def _scaled(self, rows: Sequence[TraceRow]) -> list[TraceRow]:
        scale = self._settings.length_scale
        return [
            msgspec.structs.replace(
                row,
                prompt_tokens=max(1, round((row.prompt_tokens or 0) * scale)),
                output_tokens=max(2, round((row.output_tokens or 0) * scale)),
            )
            for row in rows
        ]

    def _arrivals(self, rows: list[TraceRow], *, slo_scale: float) -> list[Arrival]:
        settings = self._settings
        trace = msgspec.structs.replace(self._trace, rows=rows)
        spec = ReplaySpec(seed=settings.seed, kind=KIND, slo_scale=slo_scale, context_tokens=settings.context_tokens)
        arrivals, _ = arrivals_from_trace(trace, spec, self._mixture, self._prompts)
        return arrivals
