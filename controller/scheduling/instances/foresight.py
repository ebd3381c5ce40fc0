"""How well the pace of an instance foretells what a request gets: the chance that a request keeps a time per token. Pure.

The pace is a mean over many steps and requests. A single request may get another one: the engine pauses, other processes hold the machine
up, or it becomes slower. Where that makes much of a difference, a target just below the pace is often kept, and one above it often missed.
"""

from hmas.controller.core.statistics.quantiles import SortedWindow

_KEPT = 64
_PRIOR = (0.9, 0.95, 0.97, 1.0, 1.0, 1.03, 1.05, 1.1)
"""Ratios before there are any."""
_TOKENS_LEAST = 8
"""Tokens of an answer that says something."""
_LEAST_SHARE = 0.3
"""Least share of the pace at the first token that is expected, however much smaller the batch has become."""


class Expectation:
    """What was known of the pace at a request's first token.

    Attributes:
        token_ms: The pace. `rise_ms`: what a sequence more would have added to it.
        sequences: Sequences in flight, with the request's own.
        steps, sequence_steps: The instance's decode steps until then, and the sum of the sequences in each.
    """

    __slots__ = ("rise_ms", "sequence_steps", "sequences", "steps", "token_ms")

    def __init__(self, token_ms: float, rise_ms: float, sequences: float, steps: float, sequence_steps: float) -> None:
        self.token_ms = token_ms
        self.rise_ms = rise_ms
        self.sequences = sequences
        self.steps = steps
        self.sequence_steps = sequence_steps


class Foresight:
    """Ratios of the time per token that requests got to the pace that was expected of them, and the chance that follows from them.

    The pace that is expected follows the batch: a request that ran with fewer others than at its first token was expected to be faster. So
    the ratios hold only what nobody could know, and do not spread because the load changes. Ratios to the pace at the first token alone do:
    a guard that weighed by those served 75 instead of 89 % in time on two A100 past capacity.

    Attributes:
        ratios: The newest ratios.
        steps: The instance's decode steps so far.
    """

    __slots__ = ("_sequence_steps", "ratios", "steps")

    def __init__(self) -> None:
        self.ratios = SortedWindow(_KEPT)
        for ratio in _PRIOR:
            self.ratios.add(ratio)
        self.steps = self._sequence_steps = 0.0

    def stepped(self, steps: float, sequences: float) -> None:
        """Records so many decode steps, with so many sequences in the mean."""
        self.steps += steps
        self._sequence_steps += steps * sequences

    def expect(self, token_ms: float, rise_ms: float, sequences: float) -> Expectation:
        """What is expected of a request that has its first token now, as `Expectation`."""
        return Expectation(token_ms, rise_ms, sequences, self.steps, self._sequence_steps)

    def ended(self, expected: Expectation, tpot_ms: float, tokens: int) -> None:
        """Learns from a request that has ended, with so many tokens and a mean time per token of `tpot_ms`."""
        steps = self.steps - expected.steps
        if tokens < _TOKENS_LEAST or steps <= 0.0:
            return
        more = (self._sequence_steps - expected.sequence_steps) / steps - expected.sequences
        self.ratios.add(tpot_ms / max(_LEAST_SHARE * expected.token_ms, expected.token_ms + expected.rise_ms * more))

    def chance(self, ratio: float) -> float:
        """How likely a request gets a time per token of at most so many times the pace, from 0 to 1."""
        return self.ratios.share_within(ratio)
