"""The band [u_low, u_high] by extremum seeking from tg_best, the historical best throughput (3.4.2, Table 3). Pure.

The paper names the method and no formula. Here tg_best fades, so that an old best gives way to what the workload allows now; the band lies
around the utilization at which tg_best was seen, and its centre swings a little, because a maximum is found only by passing it. Only views
with waiting requests count: without a queue the arrivals limit the throughput, and not the band.
"""

import math
from dataclasses import dataclass

from hmas.agents.statera.loops import Band

HALF_LIFE_S = 60.0
"""Time in which tg_best fades by half."""
SWING = 0.03
"""Amplitude of the swing of the band's centre, as a utilization. `SWING_S`: its period."""
SWING_S = 30.0


@dataclass(frozen=True, slots=True)
class Best:
    """tg_best in tokens per second, the utilization at which it was seen, and when it was faded last; 0 tokens per second: none yet."""

    throughput: float = 0.0
    utilization: float = 0.0
    at_s: float = 0.0


def sought(best: Best, throughput: float, utilization: float, now_s: float) -> Best:
    """The best after one more view: the view itself if it is no worse than the faded best."""
    faded = best.throughput * 0.5 ** (max(0.0, now_s - best.at_s) / HALF_LIFE_S)
    if throughput > 0.0 and throughput >= faded:
        return Best(throughput, utilization, now_s)
    return Best(faded, best.utilization, now_s)


def band_around(best: Best, start: Band, now_s: float) -> Band:
    """The band: as wide as the configured one, around the best's utilization, between 0 and 1; the configured one without a best."""
    if best.throughput <= 0.0:
        return start
    half = (start.high - start.low) / 2.0
    centre = best.utilization + SWING * math.sin(2.0 * math.pi * now_s / SWING_S)
    centre = max(half, min(1.0 - half, centre))
    return Band(centre - half, centre + half)
