"""From the live comparison's blocks to one row per arm. Works on the document: figures can be made again from disk."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from hmas_lab.compare import judged, plain, spread, twin_noise
from hmas_lab.live.settings import DEFAULT, OURS, STRONG, TWIN

Blocks = Sequence[Mapping[str, Any]]
GOAL_DEFAULT, GOAL_STRONG, GOAL_LONG = 1.6, 1.15, 0.9
"""Goodput wanted over the engine's default, over the strong baseline, and of long requests over the strong baseline's."""


def summary(blocks: Blocks, names: Sequence[str]) -> dict[str, Any]:
    """What all blocks come to.

    Returns:
        `noise`: the greatest ratio between the two runs of the strong baseline in a block, less 1. `rows`: one per arm, medians over
        blocks, with ratios to the engine's default and to the mean of the strong baseline's runs in the same block. `fixed_best`: the
        fixed policy with the highest median. `goals`: what was wanted of H-MAS, what came, and whether that reaches it.
    """
    pairs = [(_goodput(block, STRONG), _goodput(block, TWIN)) for block in blocks if {STRONG, TWIN} <= set(block["runs"])]
    noise = twin_noise(pairs)
    factor = max((max(pair) / min(pair) for pair in pairs if min(pair) > 0.0), default=0.0)
    rows = [_row(blocks, name, noise) for name in names]
    fixed = [row for row in rows if row["arm"].startswith("fixed-") and row["runs"]]
    best = max(fixed, key=lambda row: row["goodput_rps"].median)["arm"] if fixed else ""
    result: dict[str, Any] = plain(
        {"noise": factor - 1.0 if factor else None, "rows": rows, "fixed_best": best, "goals": _goals(blocks, best)}
    )
    return result


def _row(blocks: Blocks, name: str, noise: float) -> dict[str, Any]:
    made = [block for block in blocks if name in block["runs"]]
    runs = [block["runs"][name] for block in made]
    over_strong = [_goodput(block, name) / base for block in made if (base := _strong(block, name)) > 0.0]
    row: dict[str, Any] = {
        "arm": name,
        "runs": len(runs),
        "rejected": sum(block["rejected"].get(name, 0) for block in blocks),
        "goodput_rps": spread([run["goodput_rps"] for run in runs]),
        "over_default": spread(_ratios(blocks, name, DEFAULT)),
        "over_strong": spread(over_strong),
        "verdict": "baseline" if name in {STRONG, TWIN} else judged(over_strong, noise),
        "classes": {
            key: median(run["per_class"][key]["goodput_rate"] for run in runs if key in run["per_class"])
            for key in sorted({key for run in runs for key in run["per_class"]})
        },
        "jain_tenants": median(run["jain_tenants"] for run in runs) if runs else None,
        "shed_rate": median(run["rejected"] / max(1, run["submitted"]) for run in runs) if runs else None,
        "esg_rate": spread([run["esg_rate"] for run in runs]),
    }
    for figure, quantile in (("ttft_ms_started", "p95"), ("tpot_ms", "p95")):
        row[f"{figure}_{quantile}"] = median(run[figure][quantile] for run in runs) if runs else None
    return row


def _goals(blocks: Blocks, best: str) -> list[dict[str, Any]]:
    wanted = [
        ("goodput over the engine's default", GOAL_DEFAULT, _ratios(blocks, OURS, DEFAULT)),
        ("goodput over FCFS with best window and shedding", GOAL_STRONG, [r for b in blocks if (r := _over_strong(b)) is not None]),
        ("long requests' goodput over that baseline's", GOAL_LONG, [r for b in blocks if (r := _long_over_strong(b)) is not None]),
    ]
    if best:
        wanted.append(
            (f"goodput over the best fixed policy ({best.removeprefix('fixed-')}, in hindsight)", 0.98, _ratios(blocks, OURS, best))
        )
    return [
        {"goal": words, "wanted": least, "found": spread(found), "reached": bool(found) and median(found) >= least}
        for words, least, found in wanted
    ]


def _goodput(block: Mapping[str, Any], name: str) -> float:
    return float(block["runs"][name]["goodput_rps"])


def _strong(block: Mapping[str, Any], but: str = "") -> float:
    """The strong baseline's goodput in a block: the mean of its runs; `but` is none of its own yardsticks."""
    runs = [_goodput(block, name) for name in (STRONG, TWIN) if name in block["runs"] and name != but]
    return fmean(runs) if runs else 0.0


def _over_strong(block: Mapping[str, Any]) -> float | None:
    base = _strong(block)
    return _goodput(block, OURS) / base if OURS in block["runs"] and base > 0.0 else None


def _ratios(blocks: Blocks, name: str, base: str) -> list[float]:
    both = [block for block in blocks if {name, base} <= set(block["runs"])]
    return [_goodput(block, name) / _goodput(block, base) for block in both if _goodput(block, base) > 0.0]


def _long_over_strong(block: Mapping[str, Any]) -> float | None:
    """Long requests' goodput of H-MAS over the mean of the strong baseline's runs."""
    bases = [rate for name in (STRONG, TWIN) if name in block["runs"] and (rate := _long(block["runs"][name])) is not None]
    ours = _long(block["runs"][OURS]) if OURS in block["runs"] else None
    return ours / fmean(bases) if ours is not None and bases and fmean(bases) > 0.0 else None


def _long(run: Mapping[str, Any]) -> float | None:
    rates = [float(one["goodput_rate"]) for key, one in run["per_class"].items() if key.endswith("long")]
    return fmean(rates) if rates else None
