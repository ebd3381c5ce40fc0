"""What replays have said of each candidate, slot by slot, and how sure a difference is. Pure and bounded.

One window of a minute says little: requests miss in bursts, and policies differ in a few of them. So what replays say is kept by slots of
absolute time. Two candidates are compared on the slots that both were replayed on in the same round, on the same traffic from the same
state: another round knows other lengths and finds another queue, which moves both by more than they differ. Of rounds that tell of the same
slot the newest counts, and newer slots count for more: what has become better of late is what matters, and much traffic shows it soon.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from math import sqrt

import msgspec

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.replay import SLOT_S, ReplayResult

HORIZON_S = 300.0
"""Age beyond which a slot counts no more."""
HALF_LIFE_REQUESTS = 400.0
"""Requests after which a slot counts half: so many tell a few points from chance. `HALF_LIFE_S`: bounds of the age that this comes to."""
HALF_LIFE_S = (20.0, 90.0)
BLOCK_SLOTS = 4
"""Slots that are taken together for the error: requests next to each other share their fate, and bursts last as long as that."""
ROUNDS_MOST = 64
"""Rounds of replays that are kept."""
FRESH_ROUNDS = 4
"""Rounds within which a candidate must have been replayed to be chosen."""

Word = tuple[float, float]
"""Of a slot: good requests, and all, each counted by its weight over the mean one of its round."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate against another.

    Attributes:
        share: Difference of weighted good requests over those asked, -1 to 1.
        error: Its standard error: the larger of how the difference scatters over blocks of slots, and of how a number of so many requests
            scatters by itself, for a few blocks may agree by chance; 1 with fewer than three blocks.
        good, other_good: Weighted share of good requests of each.
    """

    share: float
    error: float
    good: float
    other_good: float


class Hindsight(msgspec.Struct, frozen=True, kw_only=True):
    """What replays say of a span: the label of the best candidate, its share of good requests, and that of the one that was chosen."""

    best: str
    best_good: float
    chosen_good: float


class Evidence:
    """Rounds of replays, each of several candidates in the same world; `rounds` of them are kept."""

    def __init__(self, rounds: int = ROUNDS_MOST) -> None:
        self._rounds: deque[dict[str, tuple[Candidate, dict[int, Word]]]] = deque(maxlen=rounds)
        self._newest = 0

    def add(self, outlooks: Iterable[ReplayResult]) -> None:
        """Takes a round: replays in the same world, or none."""
        told = {}
        for outlook in outlooks:
            # Tenants' weights say how requests compare, not how many there are.
            weight = sum(asked for _, asked in outlook.slots.values())
            one = outlook.requests / weight if weight > 0.0 else 0.0
            # The first and the last slot of a window are cut off: only whole ones are compared.
            slots = {slot: (good * one, asked * one) for slot, (good, asked) in sorted(outlook.slots.items())[1:-1]}
            told[outlook.candidate.label] = (outlook.candidate, slots)
            self._newest = max(self._newest, max(slots, default=0))
        self._rounds.append(told)

    def fresh(self) -> list[Candidate]:
        """Candidates that were replayed in one of the last rounds."""
        found: dict[str, Candidate] = {}
        for told in islice(reversed(self._rounds), FRESH_ROUNDS):
            for label, (one, _) in told.items():
                found.setdefault(label, one)
        return list(found.values())

    def gain(self, one: Candidate, other: Candidate) -> Gain | None:
        """How much more is good under one than under the other; None where no slot was replayed under both in a round."""
        pairs = self._pairs(one.label, other.label)
        half_life = _half_life_s(theirs[1] for _, theirs in pairs.values()) / SLOT_S
        weights = {slot: 0.5 ** ((self._newest - slot) / half_life) * theirs[1] for slot, (_, theirs) in pairs.items()}
        total = sum(weights.values())
        if total <= 0.0:
            return None
        good = sum(weights[slot] * _rate(mine) for slot, (mine, _) in pairs.items()) / total
        other_good = sum(weights[slot] * _rate(theirs) for slot, (_, theirs) in pairs.items()) / total
        share = good - other_good
        blocks: dict[int, float] = {}
        for slot, (mine, theirs) in pairs.items():
            residual = weights[slot] * (_rate(mine) - _rate(theirs) - share)
            blocks[slot // BLOCK_SLOTS] = blocks.get(slot // BLOCK_SLOTS, 0.0) + residual
        error = 1.0
        if len(blocks) >= 3:
            error = sqrt(sum(residual**2 for residual in blocks.values()) * len(blocks) / (len(blocks) - 1)) / total
            # At least `share` of the requests fare otherwise, whose number scatters by its root.
            requests = total**2 / sum(weights[slot] ** 2 / theirs[1] for slot, (_, theirs) in pairs.items() if theirs[1] > 0.0)
            error = max(error, sqrt(abs(share) / requests))
        return Gain(share=share, error=error, good=good, other_good=other_good)

    def hindsight(self, chosen: Candidate, from_s: float, until_s: float) -> Hindsight | None:
        """Who would have been best in a span, of those replayed on the same slots as the chosen one; None where that one was not."""

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
                # Rounds differ in how they see the chosen one itself: what counts is the lead over it in the same rounds.
                found, most = Hindsight(best=label, best_good=min(1.0, chosen_good + ahead), chosen_good=chosen_good), ahead
        return found

    def _pairs(self, label: str, other: str) -> dict[int, tuple[Word, Word]]:
        """Words on both of each slot, by the newest round that has them."""
        oldest = self._newest - HORIZON_S / SLOT_S
        pairs: dict[int, tuple[Word, Word]] = {}
        for told in self._rounds:
            if label in told and other in told:
                mine, theirs = told[label][1], told[other][1]
                pairs.update((slot, (mine[slot], theirs[slot])) for slot in mine.keys() & theirs.keys() if slot >= oldest)
        return pairs


def _half_life_s(asked: Iterable[float]) -> float:
    """Age at which a slot counts half, by how much is asked in one."""
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
