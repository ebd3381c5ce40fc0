"""Figures of a run, and of all blocks: each router beside the default one on the same requests. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import msgspec

from hmas.controller.core.statistics.quantiles import percentile
from hmas.loadgen.results import Result, is_good
from hmas_lab.compare import LEAST_BLOCKS, paired, plain
from hmas_lab.unequal.settings import FAST, OURS, SLOW


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        sent: Requests that arrived after the warm-up; the other figures are of these.
        good: Ended within both targets. `ended`: came to their proper end.
        ttft_ms_p50, ttft_ms_p95: Over all of them; one without a first token counts as `never_ms`.
        to_fast: Share that the fast engine answered, of those that an engine answered.
    """

    sent: int
    good: int
    ended: int
    ttft_ms_p50: float
    ttft_ms_p95: float
    to_fast: float

    @property
    def good_share(self) -> float:
        """Share of the requests that were good."""
        return self.good / self.sent if self.sent else 0.0


def row_of(results: Sequence[Result], *, warmup_s: float, never_ms: float) -> Row:
    """Figures of a run.

    Args:
        results: All of it.
        warmup_s: What arrived before is left out.
        never_ms: Stands for the TTFT of a request without a first token: else the percentiles would be those of the survivors.
    """
    scored = [one for one in results if one.at_s >= warmup_s]
    ttft = sorted(one.ttft_ms if one.ttft_ms >= 0.0 else never_ms for one in scored)
    by_engine = {name: sum(one.instance == name for one in scored) for name in (FAST, SLOW)}
    return Row(
        sent=len(scored),
        good=sum(map(is_good, scored)),
        ended=sum(one.outcome == "completed" for one in scored),
        ttft_ms_p50=round(percentile(ttft, 50), 1),
        ttft_ms_p95=round(percentile(ttft, 95), 1),
        to_fast=round(by_engine[FAST] / max(1, sum(by_engine.values())), 4),
    )


def summary(blocks: Sequence[Mapping[str, Any]], loads: Sequence[float], routers: Sequence[str]) -> dict[str, Any]:
    """Every router at every load over the blocks.

    Counts are sums, times medians and shares means over its runs. `over_default` holds the differences to the default router, paired within
    a block: `good_share` in points (hundredths), `ttft_ms_p50` in ms, each with half the width of its 95 % confidence interval (`half`; of
    all comparisons together: `sure_half`).
    """
    comparisons = len(loads) * (len(routers) - 1)
    found = []
    for load in loads:
        parts = [part for block in blocks for part in block["loads"] if part["load"] == load]
        rows = {name: [msgspec.convert(part["runs"][name], Row) for part in parts if name in part["runs"]] for name in routers}
        arms: dict[str, Any] = {}
        for name in routers:
            arms[name] = {"rejected": sum(part["rejected"].get(name, 0) for part in parts), **_totals(rows[name])}
            if name != OURS:
                pairs = [
                    tuple(msgspec.convert(part["runs"][one], Row) for one in (name, OURS))
                    for part in parts
                    if {name, OURS} <= set(part["runs"])
                ]
                arms[name]["over_default"] = _differences(pairs, comparisons)
        found.append({"load": load, "arms": arms})
    result: dict[str, Any] = plain({"loads": found})
    return result


def _totals(rows: Sequence[Row]) -> dict[str, Any]:
    counts = {name: sum(getattr(row, name) for row in rows) for name in ("sent", "good", "ended")}
    if not rows:
        return {"runs": 0, **counts}
    return {
        "runs": len(rows),
        **counts,
        "good_share": fmean(row.good_share for row in rows),
        "ttft_ms_p50": median(row.ttft_ms_p50 for row in rows),
        "ttft_ms_p95": median(row.ttft_ms_p95 for row in rows),
        "to_fast": fmean(row.to_fast for row in rows),
    }


def _differences(pairs: Sequence[tuple[Row, ...]], comparisons: int) -> dict[str, Any]:
    shares = paired([100.0 * row.good_share for row, _ in pairs], [100.0 * ours.good_share for _, ours in pairs], comparisons)
    times = paired([row.ttft_ms_p50 for row, _ in pairs], [ours.ttft_ms_p50 for _, ours in pairs], comparisons)
    verdict = shares.verdict if len(pairs) >= LEAST_BLOCKS else "too few runs"
    return {"blocks": len(pairs), "good_share": shares, "ttft_ms_p50": times, "verdict": verdict}
