"""Adaptive risk of a length bound: how much less than epsilon is asked of the window of errors while misses run ahead. Pure.

The excess of misses S, the sum of (missed - epsilon), is the only state. It is held at or above -SLACK: a long run without a miss buys no
licence for many. Up to +SLACK it changes nothing, for exchangeable errors wander that far by chance. Beyond, the risk asked of the window
falls in proportion (adaptive conformal inference, Gibbs and Candes 2021, run on the excess as the integrator of conformal PI control,
Angelopoulos, Candes and Tibshirani 2023, with a dead zone), and GRACE misses later it is nothing: the largest error there is. What still
comes out above that moves the bound up by doubling, where ACI would ask for an infinite one.

What holds, and why, is in docs/statera.md.
"""

from dataclasses import dataclass

SLACK = 4.0
"""Misses ahead of epsilon that count as chance; likewise the largest credit."""
GRACE = 8.0
"""Misses beyond the slack over which the risk falls from epsilon to nothing."""
DOUBLINGS_MAX = 24.0
"""A bound 2^24 times the largest error seen is above any length there is."""
LEAST_TOKENS = 16.0
"""What is doubled, at least."""


@dataclass(slots=True)
class AdaptiveRisk:
    """The excess of misses of one bucket.

    Attributes:
        epsilon: Risk that is wanted in the long run.
        excess: Misses less epsilon for each bound that was tried, at least -SLACK.
    """

    epsilon: float
    excess: float = 0.0

    def note(self, *, missed: bool) -> None:
        """A length has come out above its bound, or not."""
        moved = self.excess + (1.0 if missed else 0.0) - self.epsilon
        self.excess = min(SLACK + GRACE + DOUBLINGS_MAX, max(-SLACK, moved))

    @property
    def level(self) -> float:
        """The risk to ask of the window now: epsilon or less, 0 where its largest error is called for."""
        return self.epsilon * max(0.0, 1.0 - max(0.0, self.excess - SLACK) / GRACE)

    def stretched(self, largest: float) -> float:
        """The bound from the window's largest error, once `level` is 0."""
        doublings = max(0.0, self.excess - SLACK - GRACE)
        return float(largest + (2.0**doublings - 1.0) * max(LEAST_TOKENS, abs(largest)))
