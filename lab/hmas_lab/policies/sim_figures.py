"""From simulated runs to who wins where: means over seeds, paired differences to the baseline, and whether any of them is sure."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from hmas_lab.compare import mean_half, paired, plain
from hmas_lab.policies.settings import BASELINE


class Measure(NamedTuple):
    """What policies are compared by: its words, where it lies in a row, and whether more is better."""

    words: str
    group: str
    key: str
    more: bool = True


MEASURES: Mapping[str, Measure] = {
    "goodput": Measure("goodput/s", "figures", "goodput_rps"),
    "short": Measure("short requests in time", "classes", "short"),
    "long": Measure("long requests in time", "classes", "long"),
    "fairness": Measure("fairness of service (Jain)", "figures", "service_jain"),
    "worst_over_best": Measure("worst tenant over best", "figures", "service_max_min"),
    "ttft_p99": Measure("TTFT p99 of those started, ms", "figures", "ttft_ms_started_p99", more=False),
    "ttft_p99_all": Measure("TTFT p99 of all, ms", "figures", "ttft_ms_p99", more=False),
    "shed": Measure("share shed", "figures", "shed_rate", more=False),
}
Rows = Sequence[Mapping[str, Any]]


def summary(rows: Rows, policies: Sequence[str]) -> list[dict[str, Any]]:
    """One entry per slice and load, in the rows' order.

    Each holds a row per policy (every measure's mean over seeds, half width of its confidence interval, gain over the baseline with its
    own, above 0 where it is better, and the verdict), the winner by each measure with those that cannot be told from it, and which
    policies have a sure gain or loss of goodput.
    """
    places = dict.fromkeys((row["slice"], row["load"]) for row in rows)
    return [_place(name, load, [row for row in rows if (row["slice"], row["load"]) == (name, load)], policies) for name, load in places]


def _place(name: str, load: float, rows: Rows, policies: Sequence[str]) -> dict[str, Any]:
    failed = {row["policy"]: row["error"] for row in rows if row["error"]}
    whole = [policy for policy in policies if policy not in failed]
    made = {policy: [row for row in rows if row["policy"] == policy] for policy in whole}
    values = {measure: {policy: [_value(row, measure) for row in made[policy]] for policy in whole} for measure in MEASURES}
    comparisons = max(1, len(whole) - 1)
    goodput = values["goodput"]
    sure = {
        policy: paired(goodput[policy], goodput[BASELINE], comparisons).verdict
        for policy in whole
        if policy != BASELINE and BASELINE in goodput
    }
    entry: dict[str, Any] = {
        "slice": name,
        "load": load,
        "window": rows[0]["window"],
        "seeds": max((len(made[policy]) for policy in whole), default=0),
        "policies": [_policy(policy, values, comparisons) for policy in whole],
        "wins": {measure: _winner(values[measure], more=MEASURES[measure].more, comparisons=comparisons) for measure in MEASURES},
        "better": [policy for policy, verdict in sure.items() if verdict == "better"],
        "worse": [policy for policy, verdict in sure.items() if verdict == "worse"],
        "failed": failed,
    }
    result: dict[str, Any] = plain(entry)
    return result


def _value(row: Mapping[str, Any], measure: str) -> float:
    """A run's figure; a class that it had no request of counts as all in time."""
    where = MEASURES[measure]
    return float(row[where.group].get(where.key, 1.0))


def _policy(policy: str, values: Mapping[str, Mapping[str, list[float]]], comparisons: int) -> dict[str, Any]:
    row: dict[str, Any] = {"policy": policy}
    for measure, by_policy in values.items():
        mean, half = mean_half(by_policy[policy])
        row[measure] = {"mean": mean, "half": half}
        if policy != BASELINE and BASELINE in by_policy:
            sign = 1.0 if MEASURES[measure].more else -1.0
            gain = paired([sign * value for value in by_policy[policy]], [sign * value for value in by_policy[BASELINE]], comparisons)
            row[measure] |= {"gain": gain.mean, "gain_half": gain.half, "verdict": gain.verdict}
    base = values["goodput"].get(BASELINE)
    if base:
        ratios = [value / other if other else 0.0 for value, other in zip(values["goodput"][policy], base, strict=True)]
        row["goodput_over_baseline"] = dict(zip(("mean", "half"), mean_half(ratios), strict=True))
    return row


def _winner(by_policy: Mapping[str, list[float]], *, more: bool, comparisons: int) -> dict[str, Any]:
    """The policy with the best mean, and all whose difference to it is within noise."""
    if not by_policy:
        return {"policy": "", "ties": []}
    sign = 1.0 if more else -1.0
    best = max(by_policy, key=lambda policy: sign * fmean(by_policy[policy]))
    ties = [
        policy
        for policy, values in by_policy.items()
        if policy != best and paired(values, by_policy[best], comparisons).verdict == "within noise"
    ]
    return {"policy": best, "mean": fmean(by_policy[best]), "ties": ties}
