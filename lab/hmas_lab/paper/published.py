"""What H-MAS's paper reports, to stand beside ours: its Tables 1, 2 and 4, ratios of section 4.1, and its traces."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hmas_lab.paper.arms import BY_RULES, DEFAULT, NO_META, NO_STATERA, NO_TWO_LANE, PRODUCT

GOODPUT_OVER_ENGINE = (1.2, 3.0)
ESG_OVER_SGLANG, ESG_OVER_ENGINE = 1.82, 2.13
"""At 50 requests/s."""
OF_BEST_FIXED = 0.98
"""This project's own goal: of what the best fixed policy in hindsight gives."""
NO_HARM = 0.01
"""This project's own goal at low load."""


class Slice(NamedTuple):
    """A cell of Table 1: mismatch mean and p95, TTFT compliance, normalised goodput."""

    mismatch_mean: float
    mismatch_p95: float
    ttft_compliance: float
    goodput: float


TABLE_1: Mapping[str, Mapping[str, Slice]] = MappingProxyType(
    {
        "burst": {DEFAULT: Slice(1.560, 3.588, 0.1924, 0.2557), PRODUCT: Slice(1.203, 2.767, 0.8176, 0.6831)},
        "drift": {DEFAULT: Slice(1.835, 2.110, 0.2896, 0.2896), PRODUCT: Slice(1.415, 1.627, 0.8803, 0.7199)},
        "shift": {DEFAULT: Slice(2.202, 5.606, 0.1125, 0.1125), PRODUCT: Slice(1.798, 4.094, 0.6012, 0.4357)},
    }
)


class Ablated(NamedTuple):
    """A row of Table 2, over H-MAS's."""

    esg: float
    ttft_p95: float
    tpot_p95: float
    goodput: float


TABLE_2: Mapping[str, Ablated] = MappingProxyType(
    {
        NO_TWO_LANE: Ablated(0.88, 2.92, 1.08, 0.91),
        NO_STATERA: Ablated(0.23, 6.57, 0.92, 0.63),
        NO_META: Ablated(0.78, 3.16, 1.07, 0.87),
        BY_RULES: Ablated(0.89, 2.73, 1.04, 0.89),
    }
)


RULES_ROW = Ablated(0.28, 3.95, 0.88, 0.74)
"""Table 2, perception and prediction by rules and statistics."""


class Robust(NamedTuple):
    """A row of Table 4."""

    drop_1_3: float
    recovery_3_2: float
    cv_ttft: float
    esg_peak_over_mean: float
    cv_esg: float
    esg_mean: float


TABLE_4: Mapping[str, Mapping[str, Robust]] = MappingProxyType(
    {
        "phases": {DEFAULT: Robust(1.0, 0.0, 1.849, 4.67, 1.304, 819.43), PRODUCT: Robust(0.294, 0.89, 1.230, 3.73, 0.913, 1158.47)},
        "semantic": {DEFAULT: Robust(0.94, 0.07, 2.033, 3.05, 1.304, 878.61), PRODUCT: Robust(0.071, 0.93, 1.468, 2.26, 0.913, 1261.15)},
    }
)


TRACE_FIGURES: Mapping[str, float] = MappingProxyType(
    {
        "requests": 1_048_576,
        "mean_rps": 45.15,
        "peak_rps": 176,
        "step_rps": 140,
        "extra": 167,
        "long_range": 0.1565,
        "long_step": 0.0874,
        "load_p95": 1.21,
        "prompt_p95": 5894,
    }
)
"""Section 2 of its Azure traces, by the names of `hmas_lab.traces.statistics`; the number of requests is that of the week's trace."""
CONTEXT_SHARES = ("20.3% to 26.2%", "", "22.3% to 24.3%", "up to 9.2%")
"""Section 2: shares by the classes of `hmas_lab.traces.statistics.CONTEXTS`."""


class Anchor(NamedTuple):
    """How the paper's engine baseline fared: a figure by our name, its value, and whether it rises with the load."""

    figure: str
    value: float
    rises: bool = False


ANCHORS: Mapping[str, Anchor] = MappingProxyType(
    {name: Anchor("goodput_rate", cells[DEFAULT].goodput) for name, cells in TABLE_1.items()}
    | {"semantic": Anchor("drop_1_3", TABLE_4["semantic"][DEFAULT].drop_1_3, rises=True), "azure-1200": Anchor("goodput_rate", 0.75)}
)
"""Table 1, Table 4 B, and section 4.1 on the longest replay. Table 4 A (nothing recovered) stands behind the loads of fixed rate."""
