"""Fits a plant to measurements at several concurrencies, and derives control gains from the plant. Pure."""

from collections.abc import Sequence

import msgspec
import numpy as np

from hmas.agents.statera.gains import Gains, Margins, PlantFit, derive, margins
from hmas.planning import StudyError
from hmas.profiling.ladder import Rung

LEAST_RUNGS = 3


class Identified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an identification run.

    Attributes:
        misfit: Largest relative error of the fitted TPOT.
        margins: Stability margins of the derived gains on this plant; `default_margins`: those of the default gains.
    """

    rungs: list[Rung]
    plant: PlantFit
    gains: Gains
    misfit: float
    margins: Margins
    default_margins: Margins


def identify(rungs: Sequence[Rung], *, tpot_ms: float, period_s: float, tick_s: float) -> Identified:
    """Fits tpot(n) = base + slope n and derives the gains.

    Args:
        rungs: Three or more, by rising concurrency.
        tpot_ms: TPOT target for which the gains are derived; 0 for the highest measured concurrency.
        period_s: As `agents.statera_period_s`.
        tick_s: As `scheduler.tick_s`, the time between two views.

    Raises:
        StudyError: There are too few rungs, or TPOT does not rise with concurrency.
    """
    if len(rungs) < LEAST_RUNGS:
        raise StudyError(f"{len(rungs)} concurrencies were measured; allowed: {LEAST_RUNGS} or more (--ladder, --max-seconds)")
    n = np.array([float(rung.n) for rung in rungs])
    tpot = np.array([rung.tpot_ms for rung in rungs])
    base_ms, slope_ms = _line(n, tpot)
    if slope_ms <= 0.0:
        raise StudyError(f"TPOT does not rise from {rungs[0].n} to {rungs[-1].n} requests at once; allowed: a ladder that loads the engine")
    at = float(n[-1]) if tpot_ms <= 0.0 else min(float(n[-1]), max(1.0, (tpot_ms - base_ms) / slope_ms))
    near = min(rungs, key=lambda rung: abs(rung.n - at))
    plant = PlantFit(
        base_ms=round(base_ms, 4),
        slope_ms=round(slope_ms, 5),
        n_run=round(at, 2),
        decode_s=round(near.decode_s, 4),
        service_s=round(near.service_s, 4),
        rps=round(near.rps, 4),
        view_s=tick_s,
        period_s=period_s,
    )
    exact = derive(plant)
    gains = Gains(**{name: float(f"{getattr(exact, name):.4g}") for name in exact.__struct_fields__})
    if problem := gains.problem():
        raise StudyError(f"the derived {problem}: the measurement cannot be right")
    fitted = base_ms + slope_ms * n
    return Identified(
        rungs=list(rungs),
        plant=plant,
        gains=gains,
        misfit=float(np.max(np.abs(fitted - tpot) / tpot)),
        margins=margins(gains, plant),
        default_margins=margins(Gains(), plant),
    )


def _line(n: np.ndarray, tpot: np.ndarray) -> tuple[float, float]:
    """Fits a line by least squares on relative errors, with a base of 0 or more."""
    weights = 1.0 / tpot
    design = np.column_stack([np.ones_like(n), n]) * weights[:, None]
    (base, slope), *_ = np.linalg.lstsq(design, np.ones_like(n), rcond=None)
    if base >= 0.0:
        return float(base), float(slope)
    return 0.0, float((n * weights).sum() / ((n * weights) ** 2).sum())
