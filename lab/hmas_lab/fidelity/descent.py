"""Least squares over a simulator: derivatives from differences, steps that a staircase does not mislead."""

from collections.abc import Callable, Iterator

import numpy as np

from hmas.profiling.coefficients import Floats

_SHARES = (1.0, 0.4)
_ENOUGH = 0.005

Residuals = Callable[[Floats], Floats]


def gauss_newton(
    residuals: Residuals,
    start: Floats,
    lower: Floats,
    upper: Floats,
    *,
    rounds: int,
    difference: float,
    longest: float = 0.8,
    knee: float = 0.05,
) -> Floats:
    """Lowers the soft-L1 loss of residuals by damped Gauss-Newton steps, and by single parameters where those fail.

    Each round takes differences far wider than the simulation's grain, solves the reweighted normal equations with a small damping, and
    tries the whole step, then a shorter one. Where neither helps it goes to the best of the points that the differences have shown, then
    looks to their other sides; it ends where nothing is better. Deterministic.

    Args:
        residuals: Of a parameter vector, each about 0 where all is well.
        start: Where to begin.
        lower: Least values.
        upper: Greatest values.
        rounds: Steps at most.
        difference: Width of the differences.
        longest: Largest change of a parameter in one round.
        knee: Residual from which the loss is linear.
    """
    at = np.clip(start, lower, upper)
    here = residuals(at)
    for _ in range(rounds):
        better = _loss(here, knee) * (1.0 - _ENOUGH)
        sides = [_moved(at, column, difference, lower, upper) for column in range(len(at))]
        shown = [residuals(side) for side in sides]
        slopes = np.column_stack([(found - here) / (side[c] - at[c]) for c, (side, found) in enumerate(zip(sides, shown, strict=True))])
        weights = (1.0 + (here / knee) ** 2) ** -0.5
        normal = slopes.T @ (weights[:, None] * slopes)
        damping = 1e-3 * np.trace(normal) / len(at) * np.eye(len(at))
        step = np.clip(np.linalg.solve(normal + damping, -slopes.T @ (weights * here)), -longest, longest)
        best = min(range(len(at)), key=lambda column: _loss(shown[column], knee))

        def candidates(
            at: Floats = at, step: Floats = step, best: int = best, sides: list[Floats] = sides, shown: list[Floats] = shown
        ) -> Iterator[tuple[Floats, Floats]]:
            for share in _SHARES:
                there = np.clip(at + share * step, lower, upper)
                yield there, residuals(there)
            yield sides[best], shown[best]
            for column in range(len(at)):
                other = np.clip(2.0 * at - sides[column], lower, upper)
                yield other, residuals(other)

        found = next(((there, seen) for there, seen in candidates() if _loss(seen, knee) < better), None)
        if found is None:
            break
        at, here = found
    return at


def _moved(at: Floats, column: int, difference: float, lower: Floats, upper: Floats) -> Floats:
    moved = at.copy()
    moved[column] += difference if at[column] + difference <= upper[column] else -difference
    return np.maximum(moved, lower)


def _loss(residuals: Floats, knee: float) -> float:
    return float(np.sum(np.sqrt(1.0 + (residuals / knee) ** 2) - 1.0))
