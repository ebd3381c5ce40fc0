"""From simulated runs to what each belief is worth: means over seeds, and paired differences on the same requests. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from hmas_lab.agents.masking import MASKING
from hmas_lab.agents.settings import ORACLE, RULES, TRAINED, AblationSettings
from hmas_lab.compare import mean_half, paired, plain

MEASURES = ("goodput_rps", "goodput_rate", "esg_rate", "ttft_ms_started_p95", "ttft_ms_p95", "tpot_ms_p95", "shed_rate")
QUALITY = ("task_accuracy", "length_factor", *MASKING)
JUDGED = ("goodput_rps", "esg_rate")
"""Measures by which beliefs are compared in pairs."""
Rows = Sequence[Mapping[str, Any]]


def summary(rows: Rows, settings: AblationSettings) -> list[dict[str, Any]]:
    """One entry per load and way, in the settings' order.

    Each holds a row per belief: every measure's mean over seeds with half the width of its 95 % confidence interval; goodput and ESG over
    those of the rules and of the trained models on the same requests, with the verdict on the difference to the rules, sure for all
    beliefs together.
    """
    places = [(load, way) for load in settings.loads for way in settings.ways]
    return [_place(load, way, [row for row in rows if (row["load"], row["way"]) == (load, way)], settings) for load, way in places]


def _place(load: float, way: str, rows: Rows, settings: AblationSettings) -> dict[str, Any]:
    by_belief: dict[str, Rows] = {}
    for belief in settings.beliefs:
        by_belief[belief] = sorted((row for row in rows if row["belief"] == belief), key=lambda row: row["seed"])
    whole = {belief: found for belief, found in by_belief.items() if len(found) == settings.seeds}
    comparisons = max(1, len(whole) - 1)
    entry: dict[str, Any] = plain(
        {
            "load": load,
            "way": way,
            "window": rows[0]["window"] if rows else 0,
            "beliefs": [_belief(belief, whole, comparisons) for belief in whole],
        }
    )
    return entry


def _belief(belief: str, whole: Mapping[str, Rows], comparisons: int) -> dict[str, Any]:
    mine = whole[belief]
    row: dict[str, Any] = {"belief": belief, "seeds": len(mine)}
    for measure in (*MEASURES, *QUALITY):
        values = [run["figures"][measure] for run in mine if measure in run["figures"]]
        if values:
            mean, half = mean_half(values)
            row[measure] = {"mean": mean, "half": half}
    for measure in JUDGED:
        values = [run["figures"][measure] for run in mine]
        for base in (RULES, TRAINED, ORACLE):
            if base in whole and base != belief:
                theirs = [run["figures"][measure] for run in whole[base]]
                ratios = [value / other if other else 0.0 for value, other in zip(values, theirs, strict=True)]
                mean, half = mean_half(ratios)
                verdict = paired(values, theirs, comparisons).verdict
                row[measure][f"over_{base}"] = {"mean": mean, "half": half, "verdict": verdict}
    return row
