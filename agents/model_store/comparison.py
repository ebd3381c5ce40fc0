"""Whether one model is better than another on the same requests, told as soon as the evidence allows and at any time. Pure.

A test by betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024): a gambler bets on
"the new model's loss is lower by the margin", each stake fixed before the outcome is seen. While that is false, the gambler's wealth
passes 1 / alpha with probability alpha at most, however often one looks. So one may look after every completion.
"""

import math

import msgspec

ALPHA = 0.01
"""Probability of calling a model better that is not, over all looks together."""
CLIP = 2.0
"""Differences count up to this many times the mean loss of the model in force: one odd request is one odd request."""
STAKE = 0.5
"""Largest share of the wealth that one outcome can cost."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How a comparison stands.

    Attributes:
        pairs: Requests that both models forecast.
        gain: By how much the new model's mean loss is lower, as a share of the other's; negative where it is higher.
        evidence: Natural logarithm of the gambler's wealth; past `log(1 / ALPHA)` the new model is better.
        better: Whether that was passed, and enough pairs were seen.
    """

    pairs: int
    gain: float
    evidence: float
    better: bool


class Comparison:
    """Losses of two models on the same requests.

    Args:
        margin: Share of the loss of the model in force by which the other must be lower.
        least: Pairs before which neither is called better.
        burn_in: First pairs that are not counted: both have the installation to learn, and one has a head start.
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
        """Takes the losses (0 or more) of the model in force and of the new one on one request."""
        if self._skip > 0:
            self._skip -= 1
            return
        # What has been seen before this pair fixes the scale and the stake; this pair then decides what the stake brings.
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
        """Kelly's stake for what was seen so far, shrunk towards none."""
        return min(STAKE, max(0.0, self._sum / (self._squares + 1.0)))

    def verdict(self) -> Verdict:
        """How it stands now."""
        gain = (self._old - self._new) / self._old if self._old > 0.0 else 0.0
        better = self.pairs >= self._least and self._log_wealth >= math.log(1.0 / ALPHA)
        return Verdict(pairs=self.pairs, gain=gain, evidence=self._log_wealth, better=better)
