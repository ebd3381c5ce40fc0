"""From what clients saw to one row of figures for each cell, and to the ratio of two arms on the same requests. Pure."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from hmas.controller.core.statistics.quantiles import percentile
from hmas.loadgen.process import NO_END
from hmas.loadgen.results import Result, is_good
from hmas_lab.frontdoor.load import Cell
from hmas_lab.frontdoor.settings import KEPT_S

K = TypeVar("K", bound=Hashable)

REFUSED = ("rejected", "shed", "timed_out")
QUANTILE = 1.96
"""Half of a 95 % interval in standard errors."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the requests of a cell under one arm.

    Attributes:
        ended: Answers that came to their proper end. `good`: those of them within both targets.
        ttft_ms_p50, ttft_ms_p95: Over requests that stream; 0 with none. One without a first token counts as infinitely late: else an arm
            that refuses more would seem quicker. None where that is infinite. `ttft_ms_max`: of first tokens that came.
        tpot_ms_p95: Over streamed answers of two tokens or more; 0 with none.
        told: Refused, with Retry-After. `refused`: refused without.
        unanswered: Neither a first token nor a refusal within the run, or an answer that broke off.
        unfinished: Still being answered when the run ended; where not streamed, not overdue by then for its longest answer.
        kept: Without a first token (without an end, where not streamed) or a refusal until 30 s beyond the deadline.
    """

    sent: int
    ended: int
    good: int
    ttft_ms_p50: float | None
    ttft_ms_p95: float | None
    ttft_ms_max: float
    tpot_ms_p95: float
    told: int
    refused: int
    unanswered: int
    unfinished: int
    kept: int


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput of one arm over another's on the same requests.

    Attributes:
        value: None where the other arm has nothing good.
        half: Half the width of its 95 % interval; 0 where no request differs.
        good, base: Good requests of both.
    """

    value: float | None
    half: float
    good: int
    base: int


class Difference(NamedTuple):
    """A median over requests, with its 95 % interval."""

    median: float
    low: float
    high: float


def cell_of(result: Result) -> Cell:
    """The cell that a request belongs to."""
    return Cell(result.kind, result.capped, result.declared)


def cell_words(cell: Cell) -> str:
    """A cell for people."""
    return f"{cell.form}, {'capped' if cell.capped else 'no cap'}, {'declared' if cell.declared else 'undeclared'}"


def figures(results: Sequence[Result]) -> Figures:
    """Figures of one arm over some requests."""
    ttft = sorted(r.ttft_ms for r in results if r.ttft_ms >= 0.0)
    waits = [*ttft, *(math.inf for r in results if r.streamed and r.ttft_ms < 0.0)]
    tpot = sorted(r.tpot_ms for r in results if r.tpot_ms >= 0.0)
    refused = [r for r in results if r.outcome in REFUSED]
    unfinished = sum(map(_is_unfinished, results))
    return Figures(
        sent=len(results),
        ended=sum(r.outcome == "completed" for r in results),
        good=sum(map(is_good, results)),
        ttft_ms_p50=_finite(percentile(waits, 50), 2),
        ttft_ms_p95=_finite(percentile(waits, 95), 1),
        ttft_ms_max=round(ttft[-1], 1) if ttft else 0.0,
        tpot_ms_p95=round(percentile(tpot, 95), 2),
        told=sum(r.retry_after_s >= 0.0 for r in refused),
        refused=sum(r.retry_after_s < 0.0 for r in refused),
        unanswered=sum(r.outcome in ("failed", "lost") for r in results) - unfinished,
        unfinished=unfinished,
        kept=sum(map(is_kept, results)),
    )


def ms_words(value: float | None, digits: int = 0) -> str:
    """A time for people; `never` where there is none."""
    return "never" if value is None else f"{value:.{digits}f} ms"


def _finite(value: float, digits: int) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _is_unfinished(result: Result) -> bool:
    began = result.ttft_ms >= 0.0 if result.streamed else result.total_ms <= _total_target_ms(result)
    return result.outcome == "lost" and result.detail.startswith(NO_END) and began


def _total_target_ms(result: Result) -> float:
    """When an answer that is not streamed has to be complete; how long one would have been that never came, only its request says."""
    if result.outcome != "lost":
        return result.total_target_ms
    return result.slo.ttft_ms + result.slo.tpot_ms * max(0.0, result.wanted_tokens - 1.0)


def is_kept(result: Result) -> bool:
    """Whether a request was left without a word for more than `KEPT_S` beyond its deadline."""
    if not result.streamed:
        deadline_ms, word_ms = _total_target_ms(result), result.total_ms
    else:
        deadline_ms, word_ms = result.slo.ttft_ms, result.ttft_ms if result.ttft_ms >= 0.0 else result.total_ms
    return word_ms > deadline_ms + 1000.0 * KEPT_S


def ratio(ours: Sequence[Result], theirs: Sequence[Result]) -> Ratio:
    """Goodput over another arm's, request by request: the two differ only where a request was good under one of them alone.

    The interval comes from how many those are: their difference has about their number as its variance (as in McNemar's test).

    Raises:
        ValueError: They are not the same requests.
    """
    a, b = [is_good(r) for r in ours], [is_good(r) for r in theirs]
    good, base = sum(a), sum(b)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} requests beside {len(b)}; allowed: the same requests under both arms")
    if not base:
        return Ratio(value=None, half=0.0, good=good, base=0)
    apart = sum(one != other for one, other in zip(a, b, strict=True))
    return Ratio(value=round(good / base, 4), half=round(QUANTILE * math.sqrt(apart) / base, 4), good=good, base=base)


def first_token_ms_beyond(ours: Sequence[Result], theirs: Sequence[Result]) -> Difference | None:
    """By how much first tokens come later than under another arm, request by request; None where no request has one under both.

    The difference of the two arms' medians would jump where half of the requests wait for a step of the engine and half do not.

    Raises:
        ValueError: They are not the same requests.
    """
    pairs = zip(ours, theirs, strict=True)
    found = sorted(one.ttft_ms - other.ttft_ms for one, other in pairs if one.ttft_ms >= 0.0 and other.ttft_ms >= 0.0)
    if not found:
        return None
    # The sign test's interval: as many differences lie below the true median as a fair coin shows heads.
    beside = QUANTILE * math.sqrt(len(found)) / 2.0
    low, high = math.floor(len(found) / 2.0 - beside), math.ceil(len(found) / 2.0 + beside) - 1
    return Difference(median=percentile(found, 50), low=found[max(0, low)], high=found[min(len(found) - 1, high)])


def grouped(results: Sequence[Result], key: Callable[[Result], K]) -> Mapping[K, list[Result]]:
    """Results by a key, in their order."""
    found: dict[K, list[Result]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return found
