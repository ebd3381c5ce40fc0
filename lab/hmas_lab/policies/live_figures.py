"""From the live comparison's blocks to one row per policy. Works on the document: figures can be made again from disk."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from hmas_lab.compare import judged, plain, spread, twin_noise
from hmas_lab.policies.settings import BASELINE, TWIN

Run = Mapping[str, Any]
Blocks = Sequence[Mapping[str, Any]]


def summary(blocks: Blocks, policies: Sequence[str]) -> dict[str, Any]:
    """What all blocks come to.

    Returns:
        `noise`: the greatest ratio between the two runs of the baseline in a block, less 1. `rows`: one per policy and one for the
        baseline's second run, medians over blocks; `over_baseline` is the goodput over the mean of the baseline's runs in the same block.
    """
    pairs = [(_goodput(block, BASELINE), _goodput(block, TWIN)) for block in blocks if {BASELINE, TWIN} <= set(block["runs"])]
    noise = twin_noise(pairs)
    rows = [_row(blocks, name, noise) for name in (*policies, TWIN)]
    factor = max((max(a, b) / min(a, b) for a, b in pairs if min(a, b) > 0.0), default=0.0)
    return {"noise": round(factor - 1.0, 4) if factor else None, "rows": rows}


def _row(blocks: Blocks, name: str, noise: float) -> dict[str, Any]:
    made = [block for block in blocks if name in block["runs"]]
    runs: list[Run] = [block["runs"][name] for block in made]
    ratios = [_goodput(block, name) / base for block in made if (base := _base(block)) > 0.0]
    row = {
        "policy": name,
        "runs": len(runs),
        "rejected": sum(block["rejected"].get(name, 0) for block in blocks),
        "lost": sum(run["lost"] for run in runs),
        "goodput_rps": spread([run["goodput_rps"] for run in runs]),
        "over_baseline": spread(ratios),
        "ratios": ratios,
        "verdict": "baseline" if name in {BASELINE, TWIN} else judged(ratios, noise),
        "goodput_rate": _median(runs, lambda run: run["goodput_rate"]),
        "classes": _groups(runs, "per_class"),
        "tenants": _groups(runs, "per_tenant"),
        "service_jain": _median(runs, lambda run: run["fairness"]["jain"]),
        "service_max_min": _median(runs, lambda run: run["fairness"]["max_min"]),
        "jain_tenants": _median(runs, lambda run: run["jain_tenants"]),
        "jain_classes": _median(runs, lambda run: run["jain_classes"]),
        "shed_rate": _median(runs, lambda run: run["rejected"] / max(1, run["submitted"])),
    }
    for figure, quantiles in (("ttft_ms", ("p50", "p99")), ("ttft_ms_started", ("p99",)), ("tpot_ms", ("p50", "p95"))):
        for quantile in quantiles:
            row[f"{figure}_{quantile}"] = median(run[figure][quantile] for run in runs) if runs else None
    result: dict[str, Any] = plain(row)
    return result


def _goodput(block: Mapping[str, Any], name: str) -> float:
    return float(block["runs"][name]["goodput_rps"])


def _base(block: Mapping[str, Any]) -> float:
    """The baseline's goodput in a block: the mean of its runs that count."""
    runs = [_goodput(block, name) for name in (BASELINE, TWIN) if name in block["runs"]]
    return fmean(runs) if runs else 0.0


def _median(runs: Sequence[Run], figure: Callable[[Run], float]) -> float | None:
    return median(figure(run) for run in runs) if runs else None


def _groups(runs: Sequence[Run], name: str) -> dict[str, float]:
    """Median goodput rate by class or tenant."""
    keys = sorted({key for run in runs for key in run[name]})
    return {key: median(run[name][key]["goodput_rate"] for run in runs if key in run[name]) for key in keys}
