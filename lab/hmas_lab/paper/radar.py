"""What the paper's radars show (Fig. 7b and 10b): five figures of each system, over the greatest of all systems. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hmas_lab.paper.arms import DEFAULT, LIGHTLLM, PRODUCT, SGLANG, STRONG
from hmas_lab.paper.figures import has, value
from hmas_lab.tables import Table

Place = Mapping[str, Any]
Document = Mapping[str, Any]
SYSTEMS = (DEFAULT, SGLANG, LIGHTLLM, STRONG, PRODUCT)
"""Arms of the radars."""
SHAPED = ("load-30", "load-50", "azure-300", "azure-600", "azure-1200")
"""Scenarios of the paper's Fig. 7 (two rates) and Fig. 10 (three lengths of a replay)."""
RADAR: Mapping[str, str] = MappingProxyType(
    {
        "throughput_rps": "throughput",
        "ttft_compliance": "TTFT in time",
        "tpot_compliance": "TPOT in time",
        "goodput_rps": "goodput",
        "esg_rate": "ESG",
    }
)
"""Figures of the radars, and what they are called there."""


def shaped(document: Document) -> dict[str, Place]:
    """The places of `SHAPED` where any of the systems ran, on the first model."""
    model = document["summary"][0]["model"] if document["summary"] else ""
    places = {place["scenario"]: place for place in document["summary"] if place["model"] == model}
    return {name: places[name] for name in SHAPED if name in places and any(has(places[name], arm) for arm in SYSTEMS)}


def radar_shares(place: Place) -> dict[str, list[float]]:
    """Of each system of a place, the figures of `RADAR` over the greatest of all systems; 0 where that is 0."""
    arms = [arm for arm in SYSTEMS if has(place, arm)]
    most = {name: max(value(place, arm, name) for arm in arms) for name in RADAR}
    return {arm: [value(place, arm, name) / most[name] if most[name] else 0.0 for name in RADAR] for arm in arms}


def radar_table(document: Document) -> Table:
    """What the radars show, before it is put over the greatest of each place."""
    rows: list[tuple[str, ...]] = []
    for scenario, place in shaped(document).items():
        for arm in SYSTEMS:
            if has(place, arm):
                throughput, ttft, tpot, goodput, esg = (value(place, arm, name) for name in RADAR)
                rows.append((scenario, arm, f"{throughput:.2f}", f"{ttft:.3f}", f"{tpot:.3f}", f"{goodput:.2f}", f"{esg:.0f}"))
    head = ("scenario", "arm", "throughput/s", "TTFT in time", "TPOT in time", "goodput/s", "ESG/s")
    return Table("Figures of the radars (Fig. 7b and 10b)", head, rows)
