"""Means over seeds at each place of the study, and what is held against the goals. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from hmas_lab.hetero.arms import FCFS, LATENCY, LATENCY_NOW, PRODUCT, PUBLISHED, PUBLISHED_LONG, PUBLISHED_NOW, UNIFORM
from hmas_lab.hetero.published import SCALING_R2, THROUGHPUT_RATIO, published
from hmas_lab.hetero.serving import Row

SLO_POINTS = 0.05
LATENCY_FORMS, PUBLISHED_FORMS = (LATENCY, LATENCY_NOW), (PUBLISHED, PUBLISHED_NOW, PUBLISHED_LONG)
"""Readings of the two baselines: ours is held against the better one."""
JUDGED = (PRODUCT, FCFS["default"])
Places = Sequence[Mapping[str, Any]]


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry for each distribution, size and load, in the order of the rows: means and deviations of every arm's figures."""
    found: dict[tuple[str, int, float], dict[str, list[Row]]] = {}
    for row in rows:
        arms = found.setdefault((row.task.distribution, row.task.devices, row.task.load), {})
        arms.setdefault(row.task.arm, []).append(row)
    return [
        {
            "distribution": distribution,
            "devices": devices,
            "load": load,
            "arms": {arm: _arm(mine) for arm, mine in arms.items()},
            "paper": {arm: one._asdict() for arm, one in published(distribution, devices, load).items()},
        }
        for (distribution, devices, load), arms in found.items()
    ]


def _arm(rows: Sequence[Row]) -> dict[str, Any]:
    """Of a figure that some run has not (-1), there is no mean."""
    figures: dict[str, Any] = {}
    for name in rows[0].figures:
        values = [row.figures[name] for row in rows]
        figures[name] = None if min(values) < 0.0 else {"mean": fmean(values), "std": pstdev(values)}
    by_gpu = {kind: fmean(row.by_gpu[kind] for row in rows) for kind in rows[0].by_gpu}
    return {"runs": len(rows), "figures": figures, "by_gpu": by_gpu}


def at(places: Places, distribution: str = "lognormal", load: float = 1.0, devices: int = 8) -> Mapping[str, Any] | None:
    """The place, None if it was not run."""
    wanted = (distribution, load, devices)
    return next((place for place in places if (place["distribution"], place["load"], place["devices"]) == wanted), None)


def value(place: Mapping[str, Any], arm: str, figure: str) -> float | None:
    """A mean, None where there is none."""
    found = place["arms"].get(arm, {}).get("figures", {}).get(figure)
    return None if found is None else float(found["mean"])


def goals(places: Places) -> list[dict[str, Any]]:
    """Each goal for the product as it comes, and for its router alone on a first-come-first-served queue: `ours`, `wanted`, `reached`."""
    return [
        {"goal": goal, "arm": arm, "ours": ours, "wanted": wanted, "reached": reached}
        for goal, arm, ours, wanted, reached in _goals(places)
    ]


def _goals(places: Places) -> Iterator[tuple[str, str, float, float, bool]]:
    for arm in JUDGED:
        table, bimodal = at(places), at(places, "bimodal")
        if table is not None:
            ours, base = value(table, arm, "tokens_per_s"), value(table, UNIFORM, "tokens_per_s")
            if ours is not None and base:
                yield "throughput over uniform's", arm, ours / base, THROUGHPUT_RATIO, ours / base >= THROUGHPUT_RATIO
            yield from _points(table, arm, LATENCY_FORMS, "SLO attainment above latency-aware", SLO_POINTS)
            yield from _points(table, arm, PUBLISHED_FORMS, "SLO attainment above capability-weighted as published", SLO_POINTS)
            yield from _below(table, arm, LATENCY_FORMS, "P95 TTFT over latency-aware's")
            yield from _below(table, arm, PUBLISHED_FORMS, "P95 TTFT over capability-weighted's as published")
        if bimodal is not None:
            yield from _points(bimodal, arm, (UNIFORM,), "bimodal: SLO attainment above uniform", 0.0)
            yield from _points(bimodal, arm, LATENCY_FORMS, "bimodal: SLO attainment above latency-aware", 0.0)
        r2 = scaling_r2(places, arm)
        if r2 is not None:
            yield "R2 of throughput over devices", arm, r2, SCALING_R2, r2 >= SCALING_R2


def _points(
    place: Mapping[str, Any], arm: str, bases: Sequence[str], goal: str, wanted: float
) -> Iterator[tuple[str, str, float, float, bool]]:
    ours, best = value(place, arm, "slo"), _best(place, bases, "slo", max)
    if ours is not None and best is not None:
        yield goal, arm, ours - best, wanted, ours - best >= wanted and ours > best


def _below(place: Mapping[str, Any], arm: str, bases: Sequence[str], goal: str) -> Iterator[tuple[str, str, float, float, bool]]:
    ours, best = value(place, arm, "ttft_ms_p95"), _best(place, bases, "ttft_ms_p95", min)
    if ours is not None and best:
        yield goal, arm, ours / best, 1.0, ours < best


def _best(place: Mapping[str, Any], arms: Sequence[str], figure: str, best: Any) -> float | None:
    found = [one for arm in arms if (one := value(place, arm, figure)) is not None]
    return float(best(found)) if found else None


def scaling_r2(places: Places, arm: str) -> float | None:
    """R2 of the line of throughput over 4 to 32 devices, None with fewer than three sizes."""
    points = [
        (place["devices"], found)
        for place in places
        if place["distribution"] == "lognormal" and place["load"] == 1.0 and (found := value(place, arm, "tokens_per_s")) is not None
    ]
    if len(points) < 3:
        return None
    devices, tokens = np.array(points, dtype=float).T
    return float(np.corrcoef(devices, tokens)[0, 1] ** 2)
