"""Collects the replay results of each candidate by time slot, and the certainty of differences. Pure and bounded.

One window of a minute says little: misses come in bursts, and policies differ in a few of them. So results are kept by slots of absolute
time. Two candidates are compared on slots that were replayed for both in the same round, with the same traffic and initial state: another
round has other lengths and another queue, and that changes both by more than they differ. For each slot the newest round counts, and newer
slots have more weight, so recent improvements show; the more traffic, the sooner.
"""

from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from math import sqrt

import msgspec

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.replay import SLOT_S, ReplayResult

HORIZON_S = 300.0
"""Age above which a slot does not count."""
HALF_LIFE_REQUESTS = 400.0
"""Requests after which a slot counts half: enough to tell a few points from chance. `HALF_LIFE_S`: bounds of the resulting age."""
HALF_LIFE_S = (20.0, 90.0)
BLOCK_SLOTS = 4
"""Slots that form one block for the error: neighbouring requests share their fate, and bursts last about that long."""
BLOCKS_LEAST = 3
"""Fewest blocks, or slots, whose scatter gives the error. In the first minute of an overload there are fewer blocks, and a change is worth
most: then single slots give it, with a larger error."""
ROUNDS_MOST = 64
"""Rounds of replays that are kept."""
FRESH_ROUNDS = 4
"""A candidate must have been replayed within this many rounds to be chosen."""

Word = tuple[float, float]
"""Of one slot: good requests and all requests, each weighted relative to the mean weight of its round."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate compared with another.

    Attributes:
        share: Difference of their weighted shares of good requests, -1 to 1.
        error: Standard error of `share`: the larger of its scatter over blocks of slots and the scatter of a count of so many requests,
            because a few blocks may agree by chance. With fewer than three blocks it is twice what single slots show, and 1 with fewer than
            three of these.
        good, other_good: Weighted share of good requests of each.
        brief: Whether it rests on fewer than three blocks.
    """

    share: float
    error: float
    good: float
    other_good: float
    brief: bool = False


class Hindsight(msgspec.Struct, frozen=True, kw_only=True):
    """Replay results of a span: the best candidate's label, its share of good requests, and that of the chosen candidate."""

    best: str
    best_good: float
    chosen_good: float


class Evidence:
    """The last `rounds` rounds of replays, each of several candidates in the same scenario."""

    def __init__(self, rounds: int = ROUNDS_MOST) -> None:
        self._rounds: deque[dict[str, tuple[Candidate, dict[int, Word]]]] = deque(maxlen=rounds)
        self._newest = 0

    def add(self, outlooks: Iterable[ReplayResult]) -> None:
        """Adds a round: replays of the same scenario, or none."""
        told = {}
        for outlook in outlooks:
            # Tenant weights define how requests compare, not how many there are.
            weight = sum(asked for _, asked in outlook.slots.values())
            one = outlook.requests / weight if weight > 0.0 else 0.0
            # A window cuts off its first and last slot; only whole slots are compared.
            slots = {slot: (good * one, asked * one) for slot, (good, asked) in sorted(outlook.slots.items())[1:-1]}
            told[outlook.candidate.label] = (outlook.candidate, slots)
            self._newest = max(self._newest, max(slots, default=0))
        self._rounds.append(told)

    def fresh(self) -> list[Candidate]:
        """Returns the candidates that were replayed in one of the last rounds."""
        found: dict[str, Candidate] = {}
        for told in islice(reversed(self._rounds), FRESH_ROUNDS):
            for label, (one, _) in told.items():
                found.setdefault(label, one)
        return list(found.values())

    def gain(self, one: Candidate, other: Candidate) -> Gain | None:
        """Returns the gain of one candidate over the other; None if no round replayed both on a common slot."""
        pairs = self._pairs(one.label, other.label)
        half_life = _half_life_s(theirs[1] for _, theirs in pairs.values()) / SLOT_S
        weights = {slot: 0.5 ** ((self._newest - slot) / half_life) * theirs[1] for slot, (_, theirs) in pairs.items()}
        total = sum(weights.values())
        if total <= 0.0:
            return None
        good = sum(weights[slot] * _rate(mine) for slot, (mine, _) in pairs.items()) / total
        other_good = sum(weights[slot] * _rate(theirs) for slot, (_, theirs) in pairs.items()) / total
        share = good - other_good
        slots = {slot: weights[slot] * (_rate(mine) - _rate(theirs) - share) for slot, (mine, theirs) in pairs.items()}
        blocks: dict[int, float] = {}
        for slot, residual in slots.items():
            blocks[slot // BLOCK_SLOTS] = blocks.get(slot // BLOCK_SLOTS, 0.0) + residual
        brief, error = len(blocks) < BLOCKS_LEAST, 1.0
        if not brief or len(slots) >= BLOCKS_LEAST:
            # At least a share `share` of the requests ends differently; such a count scatters by its square root.
            requests = total**2 / sum(weights[slot] ** 2 / theirs[1] for slot, (_, theirs) in pairs.items() if theirs[1] > 0.0)
            error = max(_scatter((slots if brief else blocks).values()) / total, sqrt(abs(share) / requests))
            # At worst, the slots of a block all share one fate.
            error = min(1.0, error * sqrt(BLOCK_SLOTS)) if brief else error
        return Gain(share=share, error=error, good=good, other_good=other_good, brief=brief)

    def hindsight(self, chosen: Candidate, from_s: float, until_s: float) -> Hindsight | None:
        """Returns the best candidate of a span among those replayed on the same slots as the chosen one; None if that was not replayed."""

        def within(label: str) -> dict[int, tuple[Word, Word]]:
            pairs = self._pairs(label, chosen.label)
            return {slot: pair for slot, pair in pairs.items() if from_s <= slot * SLOT_S < until_s}

        whole = within(chosen.label)
        if not whole:
            return None
        chosen_good = _share(theirs for _, theirs in whole.values())
        found, most = Hindsight(best=chosen.label, best_good=chosen_good, chosen_good=chosen_good), 0.0
        for label in sorted({label for told in self._rounds for label in told}):
            pairs = within(label)
            ahead = _share(mine for mine, _ in pairs.values()) - _share(theirs for _, theirs in pairs.values())
            if pairs.keys() == whole.keys() and ahead > most:
                # Rounds differ in their result for the chosen candidate, so the lead over it within the same rounds counts.
                found, most = Hindsight(best=label, best_good=min(1.0, chosen_good + ahead), chosen_good=chosen_good), ahead
        return found

    def _pairs(self, label: str, other: str) -> dict[int, tuple[Word, Word]]:
        """Returns both candidates' results for each slot, from the newest round that has both."""
        oldest = self._newest - HORIZON_S / SLOT_S
        pairs: dict[int, tuple[Word, Word]] = {}
        for told in self._rounds:
            if label in told and other in told:
                mine, theirs = told[label][1], told[other][1]
                pairs.update((slot, (mine[slot], theirs[slot])) for slot in mine.keys() & theirs.keys() if slot >= oldest)
        return pairs


def _scatter(residuals: Collection[float]) -> float:
    """Returns the standard deviation of a sum of independent residuals around 0."""
    count = len(residuals)
    return sqrt(sum(residual**2 for residual in residuals) * count / (count - 1))


def _half_life_s(asked: Iterable[float]) -> float:
    """Returns the age at which a slot counts half, depending on the requests per slot."""
    told = list(asked)
    rate = sum(told) / (SLOT_S * len(told)) if told else 0.0
    least_s, most_s = HALF_LIFE_S
    return max(least_s, min(most_s, HALF_LIFE_REQUESTS / rate)) if rate > 0.0 else most_s


def _rate(word: Word) -> float:
    return word[0] / word[1] if word[1] > 0.0 else 0.0


def _share(words: Iterable[Word]) -> float:
    told = list(words)
    asked = sum(asked for _, asked in told)
    return sum(good for good, _ in told) / asked if asked > 0.0 else 0.0
