"""Default estimates from the cost of similar past requests, so that a request never waits for an agent."""

import math
from collections import OrderedDict, deque
from statistics import fmean

from hmas.controller.core.messages import Completion
from hmas.controller.core.slo import TargetTable
from hmas.controller.core.types import DEFAULT_IMPORTANCE, Estimates, OutcomeKind, Request, TaskType

BUCKET_EDGES = (64, 256, 1024, 4096, 16_384)
"""Prompt lengths at which one bucket ends and the next begins."""
TARGET_STEPS = 2
"""Steps per factor of two of the TTFT target. A client that declares a tighter target usually sends a different kind of request."""
_KEEP = 64
_LEAST = 8
_CELLS = 8192
_UPPER_QUANTILE = 0.9
_TARGET_MOST_MS = 1e9
_Key = tuple[str | None, str | None, int, int | None]
"""Key of a cell: a model, or None for all; a tenant, or None for all; a bucket, or -1 for all; the step of the target, or None for all."""


def bucket(prompt_tokens: int) -> int:
    """Index of the prompt-length bucket, 0 for the shortest prompts."""
    return sum(prompt_tokens >= edge for edge in BUCKET_EDGES)


def target_step(ttft_ms: float) -> int:
    """Index of the step that a TTFT target falls into."""
    return math.floor(TARGET_STEPS * math.log2(min(_TARGET_MOST_MS, max(1.0, ttft_ms))))


class _Cell:
    """The last 64 completions of one key. A completion goes to up to ten cells and a request reads one, so a cell sorts when read."""

    __slots__ = ("_summary", "outputs", "tpots_ms", "ttfts_ms")

    def __init__(self) -> None:
        self.outputs: deque[int] = deque(maxlen=_KEEP)
        self.ttfts_ms: deque[float] = deque(maxlen=_KEEP)
        self.tpots_ms: deque[float] = deque(maxlen=_KEEP)
        self._summary: tuple[float, float, float | None, float | None] | None = None

    def learn(self, output_tokens: int, ttft_ms: float, tpot_ms: float) -> None:
        """Adds one completion; a negative time is unknown."""
        self._summary = None
        self.outputs.append(output_tokens)
        if ttft_ms >= 0.0:
            self.ttfts_ms.append(ttft_ms)
        if tpot_ms >= 0.0:
            self.tpots_ms.append(tpot_ms)

    def is_below(self, output_tokens: int) -> bool:
        """Whether the upper quantile is known and less than a length."""
        return len(self.outputs) >= _LEAST and self.summary()[1] < output_tokens

    def summary(self) -> tuple[float, float, float | None, float | None]:
        """Median and upper quantile of the lengths in tokens, mean TTFT and mean TPOT in ms, None where no completion had one."""
        if self._summary is None:
            ordered = sorted(self.outputs)
            self._summary = (
                float(ordered[len(ordered) // 2]),
                float(ordered[min(len(ordered) - 1, math.ceil(_UPPER_QUANTILE * len(ordered)))]),
                fmean(self.ttfts_ms) if self.ttfts_ms else None,
                fmean(self.tpots_ms) if self.tpots_ms else None,
            )
        return self._summary


class History:
    """Estimates by model, tenant, prompt-length bucket and declared target, from the last 64 completions of each.

    The TTFT target that a client declares indicates the kind of request, without any look at the prompt. So a request with one is estimated
    from requests that declared the same: those of its tenant, else those of all tenants. With fewer than 8 of them, and for a request
    without a declared TTFT target, the tenant's bucket counts, then the bucket over all tenants, then all requests together. All this
    counts for the request's model first, and for all models together if there are fewer than 8 requests of its model; then come the fixed
    defaults of `Estimates`. This is H-MAS's historical prior for requests without usable semantics (3.2). The table keeps the 8192 cells
    that were updated last.
    """

    def __init__(self, targets: TargetTable = TargetTable()) -> None:  # noqa: B008 - immutable
        """Starts empty. `targets`: the targets of requests that declare none."""
        self._slo = targets.target(TaskType.UNKNOWN, DEFAULT_IMPORTANCE)
        self._cells: OrderedDict[_Key, _Cell] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cells)

    def learn(self, completion: Completion) -> None:
        """Learns from a completion; one without output is ignored.

        An answer that broke off would have become longer. It counts with the length that it reached, but only where this is above the upper
        quantile. So long answers, which break off most, are not all left out. Their share is not overestimated either: of the answers below
        the quantile at least as many end before they break off. The times of such an answer teach nothing.
        """
        if completion.output_tokens < 1:
            return
        broke_off = completion.outcome is not OutcomeKind.COMPLETED
        step = target_step(completion.ttft_slo_ms) if completion.ttft_declared else None
        keys = _keys(completion.model, completion.tenant, completion.prompt_tokens, step)
        # Of several answers the mean length. They are not equally long, so that the mean time per token is the pace of none.
        tpot_ms = completion.tpot_ms if completion.sequences == 1 and not broke_off else -1.0
        ttft_ms = -1.0 if broke_off else completion.service_ttft_ms
        output_tokens = max(1, completion.output_tokens // completion.sequences)
        for key in keys:
            cell = self._cells.get(key)
            if broke_off and (cell is None or not cell.is_below(output_tokens)):
                continue
            if cell is None:
                cell = self._cells[key] = _Cell()
            self._cells.move_to_end(key)
            cell.learn(output_tokens, ttft_ms, tpot_ms)
        while len(self._cells) > _CELLS:
            self._cells.popitem(last=False)

    def estimate(self, request: Request) -> Estimates:
        """The estimates of a request before any agent has answered.

        A declared SLO is used as it is; a cap on output bounds the lengths. The lengths are those of all answers together.
        """
        slo = request.declared_slo or self._slo
        prior = Estimates(slo=slo, importance=DEFAULT_IMPORTANCE)
        cell = self._cell(request)
        output, upper = prior.output_tokens, prior.output_tokens_upper
        ttft_ms: float | None = None
        tpot_ms: float | None = None
        if cell is not None:
            output, upper, ttft_ms, tpot_ms = cell.summary()
        cap, sequences = request.output_limit, request.sequences
        return Estimates(
            slo=slo,
            importance=DEFAULT_IMPORTANCE,
            output_tokens=min(cap, sequences * output),
            output_tokens_upper=min(cap, sequences * upper),
            ttft_ms=prior.ttft_ms if ttft_ms is None else ttft_ms,
            tpot_ms=prior.tpot_ms if tpot_ms is None else tpot_ms,
            source="default" if cell is None else "history",
        )

    def _cell(self, request: Request) -> _Cell | None:
        step = target_step(request.declared_slo.ttft_ms) if request.declared_slo is not None and request.declares_ttft else None
        for key in _keys(request.model, request.tenant, request.prompt_tokens, step):
            cell = self._cells.get(key)
            if cell is not None and len(cell.outputs) >= _LEAST:
                return cell
        return None


def _keys(model: str, tenant: str, prompt_tokens: int, step: int | None) -> list[_Key]:
    """The keys of a request, in the order in which they count. `step`: that of its target, None without one."""
    number = bucket(prompt_tokens)
    keys: list[_Key] = []
    for of in (model, None):
        if step is not None:
            keys += [(of, tenant, number, step), (of, None, number, step)]
        keys += [(of, tenant, number, None), (of, None, number, None), (of, None, -1, None)]
    return keys
