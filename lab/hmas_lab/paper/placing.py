"""Where the paper says how its engine baseline fared: the load at which ours fares so. Pure, but for the runs it asks for."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from hmas_lab.paper.published import ANCHORS, Anchor
from hmas_lab.paper.rows import Row
from hmas_lab.paper.scenarios import SCENARIOS

LEAST, MOST = 0.5, 1.5
"""Between these the load is looked for, over the measured capacity: beyond, no system has a whole run in reach."""
HALVINGS = 7
"""The load is found to a hundredth."""


class Site(NamedTuple):
    """What is placed: a scenario on a model."""

    model: str
    scenario: str


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A load over capacity, and how the engine default fares at it on the workload that is not scored.

    Attributes:
        figure: What the paper tells of its engine baseline, by our name; empty where it tells nothing and the load is set.
        published: The paper's value. `ours`: that of the engine default.
    """

    load: float
    figure: str = ""
    published: float = 0.0
    ours: float = 0.0


def anchor_of(scenario: str) -> str:
    """The scenario whose load stands for this one's: itself, or the one that the paper's figure is of; empty where there is no figure."""
    name = SCENARIOS[scenario].placed_as or scenario
    return name if name in ANCHORS else ""


def place(sites: Sequence[Site], run: Callable[[Sequence[tuple[Site, float]]], Sequence[Row]]) -> dict[Site, Placed]:
    """The load of each site whose scenario has an anchor, by halving the interval for all of them together.

    The load closest to the paper's figure of all that were tried is taken. `run` gives the engine default's rows at loads.
    """
    bounds = dict.fromkeys(sites, (LEAST, MOST))
    found: dict[Site, Placed] = {}
    for _ in range(HALVINGS if sites else 0):
        tried = [(site, sum(bounds[site]) / 2.0) for site in sites]
        for (site, load), row in zip(tried, run(tried), strict=True):
            anchor, (low, high) = ANCHORS[site.scenario], bounds[site]
            ours = row.figures[anchor.figure]
            bounds[site] = (low, load) if _too_hard(anchor, ours) else (load, high)
            one = Placed(load=load, figure=anchor.figure, published=anchor.value, ours=ours)
            found[site] = min(found.get(site, one), one, key=_off)
    return found


def _too_hard(anchor: Anchor, ours: float) -> bool:
    """Whether the engine default fares worse than the paper's."""
    return ours > anchor.value if anchor.rises else ours < anchor.value


def _off(placed: Placed) -> float:
    return abs(placed.ours - placed.published)
