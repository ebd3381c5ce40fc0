"""The engine model with a stopwatch: how long the gaps between two tokens of one sequence were."""

import numpy as np

from hmas.engines.sim.decoding import Stretch
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile
from hmas.profiling.coefficients import Floats


class TimedEngine(EngineModel):
    """`EngineModel` that notes the inter-token latency (ITL) of its sequences, as a client of a streaming engine sees it.

    A gap is a decode step, and before it the steps in which those that run stood still for the prompts of others, where there are such.
    """

    def __init__(self, profile: Profile, *, n_run: int | None = None, token_budget: int | None = None) -> None:
        super().__init__(profile, n_run, token_budget)
        self._gaps: list[tuple[float, int]] = []
        self._still_ms = 0.0
        self._stood = 0

    def end(self) -> Stretch:
        """Ends the stretch, and notes the gaps that it made."""
        stretch = super().end()
        if stretch.decode_seqs:
            self._note(stretch)
        else:
            self._still_ms += 1000.0 * (stretch.end_s - stretch.begin_s)
        return stretch

    def gap_median_ms(self) -> float:
        """The median over all gaps so far; 0 without any."""
        gaps, seqs = self.gaps_ms()
        if not len(gaps):
            return 0.0
        total = np.cumsum(seqs)
        return float(gaps[int(np.searchsorted(total, total[-1] / 2.0))])

    def gap_mean_ms(self) -> float:
        """The mean over all gaps so far; 0 without any."""
        seqs = sum(count for _, count in self._gaps)
        return sum(gap * count for gap, count in self._gaps) / seqs if seqs else 0.0

    def gaps_ms(self) -> tuple[Floats, Floats]:
        """Gaps in rising order, milliseconds, and how many sequences saw each. Steps of one stretch count with their mean."""
        ordered = sorted(self._gaps)
        return np.array([gap for gap, _ in ordered]), np.array([seqs for _, seqs in ordered], dtype=np.float64)

    def _note(self, stretch: Stretch) -> None:
        first_ms = 1000.0 * (stretch.end_of(1) - stretch.begin_s)
        steps, seqs = stretch.steps, stretch.decode_seqs
        # Who joined while the others stood still has had no gap yet.
        stood = min(self._stood, seqs) if self._still_ms else seqs
        if stood:
            self._gaps.append((first_ms + self._still_ms, stood))
        if stood < seqs:
            self._gaps.append((first_ms, seqs - stood))
        if steps > 1:
            mean_ms = 1000.0 * (stretch.end_of(steps) - stretch.end_of(1)) / (steps - 1)
            self._gaps.append((mean_ms, (steps - 1) * seqs))
        self._still_ms = 0.0
        self._stood = len(self.batch.group)
