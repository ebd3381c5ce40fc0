"""HeteroServe's own figures."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hmas_lab.hetero.arms import CAPACITY, LATENCY, NO_FEEDBACK, ORACLE, PUBLISHED, UNIFORM

PAPER_RPS = 49.8
"""1.0 x saturation in the paper's own simulator (Table 2)."""


class Published(NamedTuple):
    """What the paper says of a scheduler; None where it says nothing."""

    tokens_per_s: float | None
    slo: float
    ttft_ms_p95: float | None = None


TABLE_1: Mapping[str, Published] = MappingProxyType(
    {
        UNIFORM: Published(17_234, 0.264, 179_849),
        CAPACITY: Published(25_489, 0.271, 58_937),
        LATENCY: Published(36_770, 0.663, 1_079),
        ORACLE: Published(31_897, 0.216, 14_766),
        PUBLISHED: Published(36_772, 0.688, 1_044),
    }
)
"""At 1.0 of saturation."""
FIGURE_5: Mapping[str, Published] = MappingProxyType({PUBLISHED: Published(33_374, 0.9665), NO_FEEDBACK: Published(8_183, 0.011)})
"""At 0.9 of it. Without length bins: 96.22 %; without the penalty for an overflow of the cache: no difference."""
BIMODAL: Mapping[str, Published] = MappingProxyType({UNIFORM: Published(22_368, 0.267), PUBLISHED: Published(47_234, 0.121)})
"""Section 4.4."""
AT_200: Mapping[str, Published] = MappingProxyType({PUBLISHED: Published(None, 0.71), UNIFORM: Published(None, 0.15)})
"""Section 4.4, at twice the saturation; uniform's is an upper bound."""
THROUGHPUT_RATIO, SCALING_R2 = 2.13, 0.997
"""Over uniform (4.2), and of the line of throughput over devices (4.7)."""


def published(distribution: str, devices: int, load: float) -> Mapping[str, Published]:
    """What the paper says of a place, by arm."""
    if devices != 8:
        return {}
    if distribution == "bimodal":
        return BIMODAL if load == 1.0 else {}
    return {1.0: TABLE_1, 0.9: FIGURE_5, 2.0: AT_200}.get(load, {}) if distribution == "lognormal" else {}
