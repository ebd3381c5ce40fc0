"""Quality of predictions on live traffic: error and coverage over the newest completions. Pure and bounded."""

from collections import deque
from collections.abc import Mapping
from statistics import median

from hmas.agents.prediction.calibration import HIGH, LOW

WINDOW = 2_000
"""Newest completions that the figures cover."""
LEVELS = (LOW, 0.5, HIGH)


class Scoreboard:
    """Errors and hits of the actual answers, over all instances."""

    def __init__(self) -> None:
        self._errors: dict[str, deque[float]] = {"ttft": deque(maxlen=WINDOW), "tpot": deque(maxlen=WINDOW)}
        self._hits: deque[tuple[bool, bool, bool]] = deque(maxlen=WINDOW)

    def add(self, target: str, ape: float, hits: tuple[bool, bool, bool]) -> None:
        """Takes the absolute relative error, and whether the outcome was at or below each quantile of `LEVELS`."""
        self._errors[target].append(ape)
        self._hits.append(hits)

    def figures(self) -> Mapping[str, float]:
        """Returns the median absolute relative error by target: `ttft_ape`, `tpot_ape`; targets without a completion are left out."""
        return {f"{target}_ape": median(errors) for target, errors in self._errors.items() if errors}

    def coverage(self) -> Mapping[str, float]:
        """Returns the share of TTFTs and TPOTs at or below each stated quantile, by level; empty before the first."""
        count = len(self._hits)
        return {f"{level:g}": sum(hits[at] for hits in self._hits) / count for at, level in enumerate(LEVELS)} if count else {}
