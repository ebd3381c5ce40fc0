"""Figures of a run that need its course: the mismatch of Eq. 7, rates over ten seconds, the parts of ESG, phases. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

from hmas.controller.core.objectives import goodput_rate, mismatch, service_gain, slo_ttlt_ms, ttlt_ms
from hmas.controller.core.statistics.quantiles import percentile
from hmas.loadgen.results import Result, is_good

WINDOW_S = 10.0
"""Of Table 4, and of the sliding mismatch."""
PEAK_SHARE = 0.1
"""The most congested part of a run for Fig. 9 is this share of it, the one in which most tokens arrive."""
MISMATCH_MOST = 100.0
Floats = NDArray[np.float64]


def gain(result: Result) -> float:
    """A request's term of Eq. 6; nothing where it did not complete."""
    if result.outcome != "completed":
        return 0.0
    return service_gain(result.prompt_tokens, result.output_tokens, result.ttft_ms, result.tpot_ms, result.slo)


def worth(result: Result) -> float:
    """What it would bring in time: V_base of Eq. 6 at the output it asks for."""
    return service_gain(result.prompt_tokens, result.wanted_tokens, 0.0, 0.0, result.slo)


def end_of(result: Result) -> float:
    """When it ended, seconds."""
    return result.at_s + max(0.0, result.total_ms) / 1000.0


def mismatches(results: Sequence[Result], from_s: float, to_s: float) -> dict[str, float]:
    """Eq. 7 each second over the ten seconds before it, mean and p95.

    Demand is the prompt and output tokens of what arrives. Served is a prompt when its first token comes, and output tokens evenly
    from the first to the last.
    """
    times = np.arange(max(from_s, WINDOW_S), to_s, 1.0)
    if not len(times):
        return {"mismatch_mean": 0.0, "mismatch_p95": 0.0}
    asked, served = _demand(results), _served(results)
    scores = sorted(
        min(MISMATCH_MOST, mismatch((a1 - a0) / WINDOW_S, max(0.0, s1 - s0) / WINDOW_S))
        for a0, a1, s0, s1 in zip(*(total(at).tolist() for total in (asked, served) for at in (times - WINDOW_S, times)), strict=True)
    )
    return {"mismatch_mean": fmean(scores), "mismatch_p95": percentile(scores, 95)}


class _Sum:
    """What has come in steps and at constant rates by any time."""

    def __init__(self, steps: Sequence[tuple[float, float]], slopes: Sequence[tuple[float, float, float]]) -> None:
        self._at, self._steps = _summed(steps)
        changes = [(begin, rate, rate * begin) for begin, _, rate in slopes] + [(end, -rate, -rate * end) for _, end, rate in slopes]
        changes.sort()
        self._from = np.array([at for at, _, _ in changes])
        self._rates = np.concatenate(([0.0], np.cumsum([rate for _, rate, _ in changes])))
        self._offsets = np.concatenate(([0.0], np.cumsum([offset for _, _, offset in changes])))

    def __call__(self, times: Floats) -> Floats:
        step = self._steps[np.searchsorted(self._at, times, side="right")]
        place = np.searchsorted(self._from, times, side="right")
        total: Floats = step + self._rates[place] * times - self._offsets[place]
        return total


def _summed(steps: Sequence[tuple[float, float]]) -> tuple[Floats, Floats]:
    ordered = sorted(steps)
    return np.array([at for at, _ in ordered]), np.concatenate(([0.0], np.cumsum([size for _, size in ordered])))


def _demand(results: Sequence[Result]) -> _Sum:
    return _Sum([(r.at_s, float(r.prompt_tokens + r.wanted_tokens)) for r in results], [])


def _served(results: Sequence[Result]) -> _Sum:
    steps, slopes = [], []
    for result in results:
        if result.ttft_ms < 0.0:
            continue
        first_s, last_s = result.at_s + result.ttft_ms / 1000.0, end_of(result)
        steps.append((first_s, float(result.prompt_tokens)))
        if last_s > first_s:
            slopes.append((first_s, last_s, result.output_tokens / (last_s - first_s)))
        else:
            steps.append((first_s, float(result.output_tokens)))
    return _Sum(steps, slopes)


def rates_over_time(results: Sequence[Result], from_s: float, to_s: float) -> dict[str, float]:
    """Table 4 over windows of ten seconds: variation of ESG (by end) and of TTFT (mean by arrival, of those started), peak over mean."""
    esg = per_window([(end_of(r), gain(r)) for r in results], from_s, to_s)
    started = [r for r in results if r.ttft_ms >= 0.0]
    counts = per_window([(r.at_s, 1.0) for r in started], from_s, to_s)
    sums = per_window([(r.at_s, r.ttft_ms) for r in started], from_s, to_s)
    ttfts = [total / count for total, count in zip(sums, counts, strict=True) if count]
    mean = fmean(esg) if esg else 0.0
    return {
        "cv_esg": _variation(esg),
        "cv_ttft": _variation(ttfts),
        "esg_peak_over_mean": max(esg) / mean if mean else 0.0,
        "esg_mean": mean / WINDOW_S,
    }


def per_window(points: Sequence[tuple[float, float]], from_s: float, to_s: float, window_s: float = WINDOW_S) -> list[float]:
    """Sums of values over the whole windows between two times."""
    count = int((to_s - from_s) / window_s)
    sums = [0.0] * count
    for at_s, value in points:
        place = int((at_s - from_s) // window_s)
        if 0 <= place < count:
            sums[place] += value
    return sums


def _variation(values: Sequence[float]) -> float:
    mean = fmean(values) if values else 0.0
    return pstdev(values) / mean if mean else 0.0


def decomposed(results: Sequence[Result], from_s: float, to_s: float) -> dict[str, float]:
    """ESG a second by parts, over the run and over its most congested part (Fig. 9), by arrival.

    The paper gives no formula. Here: what was gained in all (`throughput`), from requests that kept their TTFT, and from those that
    kept their TPOT; and what was lost of the arriving worth: never served, and to lateness, by how much TTFT and TPOT each overran.
    """
    peak_s = max(1e-9, PEAK_SHARE * (to_s - from_s))
    tokens = per_window([(r.at_s, float(r.prompt_tokens + r.wanted_tokens)) for r in results], from_s, to_s, peak_s)
    start_s = from_s + peak_s * tokens.index(max(tokens)) if tokens else from_s
    whole = _parts([r for r in results if from_s <= r.at_s < to_s], to_s - from_s)
    peak = _parts([r for r in results if start_s <= r.at_s < start_s + peak_s], peak_s)
    return {f"run_{name}": value for name, value in whole.items()} | {f"peak_{name}": value for name, value in peak.items()}


def _parts(results: Sequence[Result], span_s: float) -> dict[str, float]:
    parts = dict.fromkeys(("throughput", "ttft", "tpot", "unserved", "late_ttft", "late_tpot"), 0.0)
    for result in results:
        gained = gain(result)
        if result.outcome != "completed" or result.ttft_ms < 0.0:
            parts["unserved"] += worth(result)
            continue
        parts["throughput"] += gained
        parts["ttft"] += gained if result.ttft_ms <= result.slo.ttft_ms else 0.0
        parts["tpot"] += gained if result.tpot_ms <= result.slo.tpot_ms else 0.0
        if ttlt_ms(result.ttft_ms, result.tpot_ms, result.output_tokens) <= slo_ttlt_ms(result.slo, result.output_tokens):
            continue
        over_ttft = max(0.0, result.ttft_ms - result.slo.ttft_ms)
        over_tpot = result.output_tokens * max(0.0, result.tpot_ms - result.slo.tpot_ms)
        lost = service_gain(result.prompt_tokens, result.output_tokens, 0.0, 0.0, result.slo) - gained
        parts["late_ttft"] += lost * over_ttft / (over_ttft + over_tpot)
        parts["late_tpot"] += lost * over_tpot / (over_ttft + over_tpot)
    return {name: value / span_s for name, value in parts.items()}


def in_phases(results: Sequence[Result], from_s: float, to_s: float, phases: int) -> dict[str, float]:
    """Share of good requests by phase (`phase1` and so on), the drop from the first to the third, and the third over the second (Table 4).

    Shares, not rates a second: the phases' arrival rates differ, and a rate that rises with the arrivals would pass for a recovery.
    """
    if phases < 2:
        return {}
    length_s = to_s / phases
    parts: Mapping[int, list[Result]] = {number: [] for number in range(phases)}
    for result in results:
        if result.at_s >= from_s:
            parts[min(phases - 1, int(result.at_s / length_s))].append(result)
    shares = [goodput_rate(sum(map(is_good, parts[number])), len(parts[number])) for number in range(phases)]
    found = {f"phase{number}": share for number, share in enumerate(shares, 1)}
    if phases == 3:
        # Where nothing was good from the beginning, all of it is lost.
        found["drop_1_3"] = (shares[0] - shares[2]) / shares[0] if shares[0] else 1.0
        found["recovery_3_2"] = shares[2] / shares[1] if shares[1] else 0.0
    return found


def series_of(results: Sequence[Result], to_s: float) -> dict[str, list[float]]:
    """For plots, over windows of ten seconds: arrivals, good ends and ESG a second; the mean TTFT of those that arrived then, seconds."""
    started = [r for r in results if r.ttft_ms >= 0.0]
    counts = per_window([(r.at_s, 1.0) for r in started], 0.0, to_s)
    waits = per_window([(r.at_s, r.ttft_ms / 1000.0) for r in started], 0.0, to_s)
    return {
        "arrived": [round(value / WINDOW_S, 3) for value in per_window([(r.at_s, 1.0) for r in results], 0.0, to_s)],
        "good": [round(value / WINDOW_S, 3) for value in per_window([(end_of(r), 1.0) for r in results if is_good(r)], 0.0, to_s)],
        "esg": [round(value / WINDOW_S, 1) for value in per_window([(end_of(r), gain(r)) for r in results], 0.0, to_s)],
        "ttft_s": [round(wait / count, 3) if count else 0.0 for wait, count in zip(waits, counts, strict=True)],
    }
