"""Tests whether one model is better than another on the same requests; the result may be read at any time. Pure.

It is a test by betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024): a gambler bets on
"the new model's loss is lower by the margin", and each stake is fixed before the outcome is known. While that is false, the gambler's
wealth exceeds 1 / alpha with probability alpha at most, however often it is checked. So it may be checked after every completion.
"""

import math

import msgspec

ALPHA = 0.01
"""Probability of calling a model better that is not, over all checks together."""
CLIP = 2.0
"""Differences count up to this many times the active model's mean loss, so that an outlier counts as one request only."""
STAKE = 0.5
"""Largest share of the wealth that one outcome can cost."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a comparison.

    Attributes:
        pairs: Requests that both models forecast.
        gain: Reduction of the mean loss by the new model, as a share of the other's; negative if it is higher.
        evidence: Natural logarithm of the gambler's wealth; above `log(1 / ALPHA)` the new model is better.
        better: Whether the evidence is above that with enough pairs.
    """

    pairs: int
    gain: float
    evidence: float
    better: bool


class Comparison:
    """Losses of two models on the same requests.

    Args:
        margin: Share of the active model's loss by which the other's must be lower.
        least: Fewest pairs before a model is called better.
        burn_in: First pairs that do not count: both models must learn the installation, and one has a head start.
    """

    def __init__(self, *, margin: float, least: int, burn_in: int = 100) -> None:
        self._margin = margin
        self._least = least
        self._skip = burn_in
        self.pairs = 0
        self._old = 0.0
        self._new = 0.0
        self._log_wealth = 0.0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, old: float, new: float) -> None:
        """Takes the losses (0 or more) of the active and of the new model on one request."""
        if self._skip > 0:
            self._skip -= 1
            return
        # Only earlier pairs determine the scale and the stake; this pair then determines the result of the bet.
        scale = (self._old + 1e-9) / (self.pairs or 1) if self.pairs else 0.0
        if scale > 0.0:
            bound = CLIP * scale
            edge = min(bound, max(-bound, old - new)) - self._margin * scale
            worst = bound + self._margin * scale
            outcome = edge / worst
            self._log_wealth += math.log1p(self._stake() * outcome)
            self._sum += outcome
            self._squares += outcome * outcome
        self.pairs += 1
        self._old += old
        self._new += new

    def _stake(self) -> float:
        """Returns Kelly's stake for the outcomes so far, shrunk towards 0."""
        return min(STAKE, max(0.0, self._sum / (self._squares + 1.0)))

    def verdict(self) -> Verdict:
        """Returns the present state."""
        gain = (self._old - self._new) / self._old if self._old > 0.0 else 0.0
        better = self.pairs >= self._least and self._log_wealth >= math.log(1.0 / ALPHA)
        return Verdict(pairs=self.pairs, gain=gain, evidence=self._log_wealth, better=better)
