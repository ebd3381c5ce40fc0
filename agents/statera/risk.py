"""Adaptive risk of a length bound: lowers the level below epsilon while misses run ahead of it. Pure.

The excess of misses S, the sum of (missed - epsilon), is the only state. It stays at or above -SLACK, so that a long run without a miss
allows no long run of misses. Up to +SLACK it changes nothing, because exchangeable errors wander that far by chance. Beyond, the level for
the window of errors falls in proportion, as in adaptive conformal inference (Gibbs and Candes 2021), run on the excess as in the integrator
of conformal PI control (Angelopoulos, Candes and Tibshirani 2023), with a dead zone. GRACE misses later it is 0 and the bound is the
largest error. Further misses raise the bound by doubling, where ACI would use an infinite bound.

docs/statera.md gives the guarantees and their proof.
"""

from dataclasses import dataclass

SLACK = 4.0
"""Misses ahead of epsilon that count as chance; also the largest credit."""
GRACE = 8.0
"""Misses beyond the slack over which the risk falls from epsilon to 0."""
DOUBLINGS_MAX = 24.0
"""A bound of 2^24 times the largest error exceeds every possible length."""
LEAST_TOKENS = 16.0
"""Smallest value that is doubled."""


@dataclass(slots=True)
class AdaptiveRisk:
    """The excess of misses of one bucket.

    Attributes:
        epsilon: The wanted long-run risk.
        excess: Misses less epsilon for each tried bound, at least -SLACK.
    """

    epsilon: float
    excess: float = 0.0

    def note(self, *, missed: bool) -> None:
        """Records whether a length exceeded its bound."""
        moved = self.excess + (1.0 if missed else 0.0) - self.epsilon
        self.excess = min(SLACK + GRACE + DOUBLINGS_MAX, max(-SLACK, moved))

    @property
    def level(self) -> float:
        """The risk for the window's quantile now: epsilon or less; 0 calls for the window's largest error."""
        return self.epsilon * max(0.0, 1.0 - max(0.0, self.excess - SLACK) / GRACE)

    def stretched(self, largest: float) -> float:
        """Returns the bound from the window's largest error, once `level` is 0."""
        doublings = max(0.0, self.excess - SLACK - GRACE)
        return float(largest + (2.0**doublings - 1.0) * max(LEAST_TOKENS, abs(largest)))
