"""Finds the window that serves the most requests within their SLO, by the fitted plant, and the one that puts none at risk. Pure.

With n requests in flight an instance completes X(n) = n / S(n) requests per second (Little's law), where S(n) is the fitted service time.
Of these, the share F(n) meets its TPOT target. The window maximises X(n) F(n): it gives up the strictest targets for throughput exactly as
far as that pays. The window matters only while requests wait, when throughput is scarce; otherwise it limits nothing. This is the extremum
seeking of H-MAS 3.4.2, done on a model.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmas.agents.statera.tpot_model import TpotModel

REACH = 1.5
"""How far beyond the largest observed concurrency a window is searched. The active window is evaluated at any size: a lull with few
requests in flight is no reason to shrink it, and the fit rejects it if it would ruin the next burst."""
INDIFFERENT = 0.01
"""Relative gain below which the present window is kept."""
PRESSURE_QUANTILE = 0.9
"""Quantile of TPOT over its target, as in `InstanceView.tpot_pressure`."""
VIEWS = 8
"""Views over which the minimum is taken: u lags behind n, so after a jump of n their ratio is too high for this long."""
U_LEAST = 0.05
"""Smallest utilization that is used; lower readings only show that there is almost none."""


@dataclass(frozen=True, slots=True)
class Target:
    """A window and the plant model's expectation there.

    Attributes:
        rps: Requests per second it completes when full.
        share: Share of requests that meet their TPOT target, 0 to 1.
        pressure: 90 % quantile of TPOT over its target.
    """

    n_run: int
    rps: float
    share: float
    pressure: float


def best_window(plant: TpotModel, *, now_n: int, low: int, high: int) -> Target | None:
    """Finds the window, `low` to `high`, that maximises expected goodput. The active one, `now_n`, is kept if no other is clearly better.

    Returns None if too little is known, or if no window meets any target.
    """
    if not plant.ready:
        return None
    reach = max(low, min(high, int(REACH * plant.tpot.n_max) + 1))
    windows = _candidates(low, reach, min(now_n, high))
    borne = plant.borne_ms()
    if not len(borne):
        return None
    tpot_ms = plant.tpot.predict(windows)
    rps = plant.rps(windows)
    share = 1.0 - np.searchsorted(borne, tpot_ms, side="left") / len(borne)
    goodput = rps * share
    place = int(np.argmax(goodput))
    best = float(goodput[place])
    if best <= 0:
        return None
    now_place = int(np.searchsorted(windows, now_n))
    if now_place < len(windows) and windows[now_place] == now_n and goodput[now_place] >= best * (1.0 - INDIFFERENT):
        place = now_place
    return Target(
        n_run=int(windows[place]),
        rps=float(rps[place]),
        share=float(share[place]),
        pressure=float(tpot_ms[place] / np.quantile(borne, 1.0 - PRESSURE_QUANTILE)),
    )


def _candidates(low: int, high: int, now_n: int) -> NDArray[np.float64]:
    """Returns whole numbers from low to high with growing distances, and the present one."""
    steps = np.unique(np.round(np.geomspace(low, high, num=48)))
    return np.union1d(steps, [now_n]) if low <= now_n else steps


class SafeConcurrency:
    """The window below which no target is at risk: the least n * u_low / u over the newest views.

    In steady state u(n), utilization as `ShortView` has it, is affine in n without negative terms: a + b n for TPOT, b n for the KV cache.
    Its elasticity lies between 0 and 1, so n / u(n) never falls as n grows, and u stays at or below u_low at least up to n * u_low / u(n);
    on the steepest such plant exactly up to there. A window below that holds requests back for no benefit.
    """

    def __init__(self) -> None:
        self._bounds: deque[float] = deque(maxlen=VIEWS)

    def sample(self, in_flight: int, u: float, u_low: float) -> None:
        """Takes a view with requests in flight and a known u."""
        self._bounds.append(in_flight * u_low / max(U_LEAST, u))

    def forget(self) -> None:
        """Clears the bounds, because targets were missed or the instance was away; nothing is known to be safe."""
        self._bounds.clear()

    @property
    def n_run(self) -> int:
        """Requests that may be in flight with no target at risk; 0 if not known."""
        return math.floor(min(self._bounds)) if len(self._bounds) == VIEWS else 0
