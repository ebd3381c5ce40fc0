"""Finds the change-point selector's table in labelled workloads: regimes in which another policy than the configured one surely wins."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hmas_lab.meta.features import FEATURES, SHORT_LIST
from hmas_lab.meta.labels import MARGIN, START, Labelled
from hmas_lab.meta.regimes import Row

REGIME = ("late_service", "deadline_miss_share", "violation_rate", "mismatch", "total_cv", "long_share", "log_dispersion", "fairness")
"""Figures that tell regimes apart; those of the fleet's own speed do not."""
CUTS = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Quantiles of a figure at which a regime may begin or end."""
SUPPORT = 0.08
"""Share of workloads that a regime must have in it."""
SURE = 3.0
"""Standard errors that a regime has to win by: each of the three hundred that are looked at does by chance once in seven hundred."""
ROWS = 5
Mask = NDArray[np.bool_]
Condition = tuple[str, float, bool]
"""A figure, a cut, and whether the regime lies above it."""


def find_rows(labelled: Sequence[Labelled]) -> list[Row]:
    """A decision list, greedily: the regime by one figure with the most to win, then the same on what is left."""
    views = np.array([seen.features for one in labelled for seen in one.seen])
    owner = np.array([place for place, one in enumerate(labelled) for _ in one.seen])
    share = 1.0 / np.bincount(owner, minlength=len(labelled))[owner]
    gains = {name: np.array([one.good[name] - one.good[START] for one in labelled]) for name in SHORT_LIST if name != START}
    left = np.ones(len(views), bool)
    rows: list[Row] = []
    while len(rows) < ROWS:
        found = max(_worth(views, left, (owner, share), gains, len(labelled)), key=lambda each: each[0], default=None)
        if found is None:
            break
        total, policy, (name, cut, above), mask = found
        rows.append(
            Row(
                when={name: (cut, None) if above else (None, cut)},
                policy=policy,
                why=f"wins {total / max(1e-9, share[mask].sum()):.1%} of requests there",
            )
        )
        left &= ~mask
    return rows


def _worth(
    views: NDArray[np.float64],
    left: Mask,
    owned: tuple[NDArray[np.int64], NDArray[np.float64]],
    gains: dict[str, NDArray[np.float64]],
    count: int,
) -> Iterator[tuple[float, str, Condition, Mask]]:
    """Every regime in which a policy surely wins: what it wins in all, the policy, the condition, the views in it."""
    owner, share = owned
    for condition in _conditions(views):
        mask = _holds(views, condition)
        inside = mask & left
        # How much of each workload lies in it: the views of one workload share their fate.
        weight = np.bincount(owner[inside], share[inside], minlength=count)
        if weight.sum() < SUPPORT * count:
            continue
        for name, gain in gains.items():
            mean = float(weight @ gain / weight.sum())
            error = float(np.sqrt((weight**2) @ (gain - mean) ** 2) / weight.sum())
            if mean > max(MARGIN, SURE * error):
                yield float(weight @ gain), name, condition, inside


def _conditions(views: NDArray[np.float64]) -> list[Condition]:
    found: list[Condition] = []
    for name in REGIME:
        cuts = np.unique(np.quantile(views[:, FEATURES.index(name)], CUTS).round(3))
        found += [(name, float(cut), above) for cut in cuts for above in (True, False)]
    return found


def _holds(views: NDArray[np.float64], condition: Condition) -> Mask:
    name, cut, above = condition
    column = views[:, FEATURES.index(name)]
    return column >= cut if above else column <= cut
