"""The window that serves most requests within their SLO, by the fitted plant. Pure.

With n requests in flight an instance completes X(n) = n / S(n) requests per second (Little's law), where S(n) = service TTFT + L tpot(n).
Of these, the share F(n) keeps its TPOT target, over the targets that recent requests had and the scatter that recent requests showed. More
than the demand D cannot be served. The window is the one that maximises min(X(n), D) F(n): under light load it only has to keep TPOT, under
a burst it trades the strictest targets against throughput exactly as far as that pays. This is the extremum seeking of H-MAS 3.4.2, done
on a model.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.statera.plant import Plant

REACH = 2.0
"""How far beyond the largest concurrency seen the fit is believed."""
INDIFFERENT = 0.01
"""Relative gain below which the present window is kept."""
TIE = 0.005
"""Windows within this of the best are equal, and the widest of them is taken."""
PRESSURE_QUANTILE = 0.9
"""Of TPOT over its SLO, as `InstanceView.tpot_pressure` has it."""
SLOS_MIN = 5


@dataclass(frozen=True, slots=True)
class Target:
    """A window and what the plant's model expects there.

    Attributes:
        n_run: The window.
        rps: Requests per second it completes when full.
        share: Share of requests that keep their TPOT target, 0 to 1.
        pressure: 90 % quantile of TPOT over its SLO.
    """

    n_run: int
    rps: float
    share: float
    pressure: float


def best_window(plant: Plant, *, now_n: int, low: int, high: int, demand_rps: float) -> Target | None:
    """Finds the window that maximises expected goodput.

    Args:
        plant: What is known.
        now_n: The window in force, kept where no other is clearly better.
        low: Smallest window allowed.
        high: Largest window allowed.
        demand_rps: Requests per second that ask for service, 0 or more.

    Returns:
        None where too little is known, where nothing is asked for, or where no window keeps any target.
    """
    slos = plant.slos_ms()
    if not plant.tpot.ready or len(slos) < SLOS_MIN or demand_rps <= 0 or plant.output_tokens <= 0:
        return None
    reach = max(low, min(high, int(REACH * max(plant.tpot.n_max, 1.0)) + 1))
    windows = _candidates(low, reach, now_n)
    tpot_ms = plant.tpot.base_ms + plant.tpot.slope_ms * windows
    served_s = np.maximum(1e-3, (plant.service_ttft_ms + plant.output_tokens * tpot_ms) / 1000.0)
    rps = windows / served_s
    ratios = plant.tpot.ratios()
    share = _share_met(ratios, slos, tpot_ms)
    goodput = np.minimum(rps, demand_rps) * share
    best = float(goodput.max())
    if best <= 0:
        return None
    place = int(np.flatnonzero(goodput >= best * (1.0 - TIE))[-1])
    now_place = int(np.searchsorted(windows, now_n))
    if now_place < len(windows) and windows[now_place] == now_n and goodput[now_place] >= best * (1.0 - INDIFFERENT):
        place = now_place
    return Target(
        n_run=int(windows[place]),
        rps=float(rps[place]),
        share=float(share[place]),
        pressure=float(np.quantile(np.outer(ratios, 1.0 / slos), PRESSURE_QUANTILE) * tpot_ms[place]),
    )


def _candidates(low: int, high: int, now_n: int) -> NDArray[np.float64]:
    """Whole numbers from low to high, ever more widely spaced, with the present one among them."""
    steps = np.unique(np.round(np.geomspace(low, high, num=48)))
    return np.union1d(steps, [now_n]) if low <= now_n <= high else steps


def _share_met(ratios: NDArray[np.float64], slos: NDArray[np.float64], tpot_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of (request, scatter) pairs with ratio * tpot <= slo, for each tpot."""
    room = slos[None, :] / tpot_ms[:, None]
    below = np.searchsorted(ratios, room.ravel(), side="right").reshape(room.shape)
    shares: NDArray[np.float64] = below.mean(axis=1) / len(ratios)
    return shares
