"""Default estimates of a request from what its like has cost before: nothing ever waits for an agent."""

import math
from collections import OrderedDict, deque
from statistics import fmean

from controller.core.messages import Completion
from controller.core.slo import slo_for
from controller.core.types import Estimates, OutcomeKind, Request, TaskType

BUCKET_EDGES = (64, 256, 1024, 4096, 16_384)
"""Prompt lengths at which one bucket ends and the next begins."""
_KEEP = 64
_LEAST = 8
_CELLS = 4096
_UPPER_QUANTILE = 0.9
_IMPORTANCE = 0.75


def bucket(prompt_tokens: int) -> int:
    """Number of the prompt-length bucket, 0 for the shortest."""
    return sum(prompt_tokens >= edge for edge in BUCKET_EDGES)


class _Cell:
    """The last 64 completions of one kind."""

    __slots__ = ("outputs", "tpots_ms", "ttfts_ms")

    def __init__(self) -> None:
        self.outputs: deque[int] = deque(maxlen=_KEEP)
        self.ttfts_ms: deque[float] = deque(maxlen=_KEEP)
        self.tpots_ms: deque[float] = deque(maxlen=_KEEP)

    def learn(self, completion: Completion) -> None:
        self.outputs.append(completion.output_tokens)
        if completion.service_ttft_ms >= 0.0:
            self.ttfts_ms.append(completion.service_ttft_ms)
        if completion.tpot_ms >= 0.0:
            self.tpots_ms.append(completion.tpot_ms)


class History:
    """Estimates by tenant and prompt-length bucket, from the last 64 completions of each.

    Where a tenant's bucket has fewer than 8, the bucket over all tenants stands in, then all requests together, then the
    fixed defaults of `Estimates`: H-MAS's historical prior for requests without usable semantics (3.2). The table keeps the
    4096 cells last learned from.
    """

    def __init__(self) -> None:
        self._cells: OrderedDict[tuple[str | None, int], _Cell] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cells)

    def learn(self, completion: Completion) -> None:
        """Takes a completion into account; what did not complete, or produced nothing, teaches nothing about cost."""
        if completion.outcome is not OutcomeKind.COMPLETED or completion.output_tokens < 1:
            return
        number = bucket(completion.prompt_tokens)
        for key in ((completion.tenant, number), (None, number), (None, -1)):
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = _Cell()
            self._cells.move_to_end(key)
            cell.learn(completion)
        while len(self._cells) > _CELLS:
            self._cells.popitem(last=False)

    def estimate(self, request: Request, slo_scale: float = 1.0) -> Estimates:
        """What to believe about a request before any agent has spoken.

        Args:
            request: The request; a declared SLO is taken as it is, a cap on output bounds the lengths.
            slo_scale: As in `slo_for`.
        """
        slo = request.declared_slo or slo_for(TaskType.UNKNOWN, _IMPORTANCE, slo_scale)
        prior = Estimates(slo=slo, importance=_IMPORTANCE)
        cell = self._cell(request)
        output, upper = prior.output_tokens, prior.output_tokens_upper
        ttft_ms, tpot_ms = prior.ttft_ms, prior.tpot_ms
        if cell is not None:
            ordered = sorted(cell.outputs)
            output = float(ordered[len(ordered) // 2])
            upper = float(ordered[min(len(ordered) - 1, math.ceil(_UPPER_QUANTILE * len(ordered)))])
            ttft_ms = fmean(cell.ttfts_ms) if cell.ttfts_ms else ttft_ms
            tpot_ms = fmean(cell.tpots_ms) if cell.tpots_ms else tpot_ms
        cap = math.inf if request.max_output_tokens is None else float(request.max_output_tokens)
        return Estimates(
            slo=slo,
            importance=_IMPORTANCE,
            output_tokens=min(cap, output),
            output_tokens_upper=min(cap, upper),
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            source="default" if cell is None else "history",
        )

    def _cell(self, request: Request) -> _Cell | None:
        number = bucket(request.prompt_tokens)
        for key in ((request.tenant, number), (None, number), (None, -1)):
            cell = self._cells.get(key)
            if cell is not None and len(cell.outputs) >= _LEAST:
                return cell
        return None
