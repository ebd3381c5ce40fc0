"""How predictions do on live traffic: error and coverage over the newest completions. Pure and bounded."""

from collections import deque
from collections.abc import Mapping
from statistics import median

from hmas.agents.prediction.calibration import HIGH, LOW

WINDOW = 2_000
"""Newest completions that the figures are of."""
LEVELS = (LOW, 0.5, HIGH)


class Scoreboard:
    """Errors and hits of the answers that were really given, all instances together."""

    def __init__(self) -> None:
        self._errors: dict[str, deque[float]] = {"ttft": deque(maxlen=WINDOW), "tpot": deque(maxlen=WINDOW)}
        self._hits: deque[tuple[bool, bool, bool]] = deque(maxlen=WINDOW)

    def add(self, target: str, ape: float, hits: tuple[bool, bool, bool]) -> None:
        """Takes in the absolute error over what came, and whether what came lay at or below each quantile of `LEVELS`."""
        self._errors[target].append(ape)
        self._hits.append(hits)

    def figures(self) -> Mapping[str, float]:
        """Median absolute error over what came, by target: `ttft_ape`, `tpot_ape`; those with no completion yet are left out."""
        return {f"{target}_ape": median(errors) for target, errors in self._errors.items() if errors}

    def coverage(self) -> Mapping[str, float]:
        """Share of TTFTs and TPOTs at or below each stated quantile, by level; empty before the first."""
        count = len(self._hits)
        return {f"{level:g}": sum(hits[at] for hits in self._hits) / count for at, level in enumerate(LEVELS)} if count else {}
