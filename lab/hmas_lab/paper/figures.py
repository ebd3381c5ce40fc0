"""From rows to what each arm comes to: means over seeds with intervals, ratios on the same workloads, the best in hindsight. Pure."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hmas_lab.compare import mean_half, paired, plain
from hmas_lab.paper.arms import ADAPTIVE, DEFAULT, FIXED, LIGHTLLM, PRODUCT, SGLANG, STRONG
from hmas_lab.paper.ground import Ground
from hmas_lab.paper.rows import Row
from hmas_lab.paper.scenarios import SCENARIOS
from hmas_lab.paper.settings import PaperSettings

BASES = (DEFAULT, STRONG, SGLANG, LIGHTLLM)
COMPARED = ("goodput_rps", "esg_rate")
"""Figures that are put over those of the bases, and of the best fixed policy."""
Rows = Sequence[Row]


def summary(rows: Rows, grounds: Sequence[Ground], settings: PaperSettings) -> list[dict[str, Any]]:
    """One entry per model and scenario, in the grounds' order: see `_place`."""
    found = []
    for ground in grounds:
        mine = [row for row in rows if (row.model, row.scenario) == (ground.model, ground.scenario)]
        if mine:
            found.append(_place(ground, mine, settings.arms_of(ground.model, ground.scenario), settings.seeds))
    return found


def _place(ground: Ground, rows: Rows, arms: Sequence[str], seeds: int) -> dict[str, Any]:
    """A scenario on a model: `arms` by name with their figures, and which fixed policy has the most goodput over all seeds.

    That is `best_fixed` among all, and `best_static` among those that do not follow the load by themselves.
    """
    by_arm = {arm: sorted((row for row in rows if row.arm == arm), key=lambda row: row.seed) for arm in arms}
    by_arm = {arm: found for arm, found in by_arm.items() if found}
    comparisons = max(1, sum(len(found) == seeds for found in by_arm.values()) - 1)
    best = best_of(FIXED, by_arm, seeds)
    static = best_of([arm for arm in FIXED if arm not in ADAPTIVE], by_arm, seeds)
    bases = tuple(base for base in dict.fromkeys((*BASES, best, static)) if base)
    entry: dict[str, Any] = plain(
        {
            "model": ground.model,
            "scenario": ground.scenario,
            "load": ground.placed.load,
            "shifts": SCENARIOS[ground.scenario].shifts,
            "rate_rps": ground.rate_rps,
            "capacity_rps": ground.capacity_rps,
            "span_s": ground.span_s,
            "seeds": seeds,
            "best_fixed": best,
            "best_static": static,
            "arms": {arm: _arm(arm, by_arm, bases, comparisons) for arm in by_arm},
            "series": {arm: found[0].series for arm, found in by_arm.items() if found[0].series},
        }
    )
    return entry


def best_of(arms: Sequence[str], by_arm: Mapping[str, Rows], seeds: int) -> str:
    """Of these arms the one with the most goodput, among those that have run on all seeds; empty where none has."""
    whole = [arm for arm in arms if len(by_arm.get(arm, ())) == seeds]
    return max(whole, key=lambda arm: sum(row.figures["goodput_rps"] for row in by_arm[arm]), default="")


def _arm(arm: str, by_arm: Mapping[str, Rows], bases: Sequence[str], comparisons: int) -> dict[str, Any]:
    mine = by_arm[arm]
    entry: dict[str, Any] = {"seeds": len(mine), "window": mine[0].window}
    entry["figures"] = {name: _mean([row.figures[name] for row in mine if name in row.figures]) for name in mine[0].figures}
    entry["classes"] = {name: _mean([row.classes[name] for row in mine if name in row.classes]) for name in ("short", "long")}
    entry["over"] = {
        base: {name: over(mine, by_arm[base], name, comparisons) for name in COMPARED} for base in bases if base != arm and base in by_arm
    }
    return entry


def _mean(values: Sequence[float]) -> dict[str, float]:
    mean, half = mean_half(values)
    return {"mean": mean, "half": half}


def over(rows: Rows, base: Rows, figure: str, comparisons: int) -> dict[str, Any]:
    """A figure over another arm's on the seeds that both have: the ratio of the means, half its interval, the verdict on the differences.

    The interval is that of the residuals `value - ratio * base`, seed by seed: a mean of ratios would follow the seed on which the base is
    closest to nothing.
    """
    theirs = {row.seed: row.figures[figure] for row in base}
    pairs = [(row.figures[figure], theirs[row.seed]) for row in rows if row.seed in theirs]
    values, others = [value for value, _ in pairs], [other for _, other in pairs]
    below = fmean(others) if others else 0.0
    ratio = fmean(values) / below if below else 0.0
    half = mean_half([(value - ratio * other) / below for value, other in pairs])[1] if below else math.inf
    return {"mean": ratio, "half": half, "verdict": paired(values, others, comparisons).verdict, "base_is_zero": not below}


def value(place: Mapping[str, Any], arm: str, figure: str) -> float:
    """An arm's mean of a figure."""
    return float(place["arms"][arm]["figures"][figure]["mean"])


def has(place: Mapping[str, Any], *arms: str) -> bool:
    """Whether these arms met in a place."""
    return all(arm in place["arms"] for arm in arms)


def of_product(place: Mapping[str, Any], base: str, figure: str) -> Mapping[str, Any] | None:
    """H-MAS over a base; None where they did not meet."""
    return place["arms"].get(PRODUCT, {}).get("over", {}).get(base, {}).get(figure)  # type: ignore[no-any-return]
