"""What replays have said of each candidate, slot by slot, and how sure a difference is. Pure and bounded.

One window of a minute says little: requests miss in bursts, and policies differ in a few of them. So what replays say is kept by slots of
absolute time, the newest replay's word for each, and two candidates are compared on the slots that both were replayed on, newer ones
counting for more. When the workload changes, what was seen before says nothing any more: it is forgotten.
"""

from math import sqrt

import msgspec

from agents.meta.candidate import Candidate
from agents.meta.twin.replay import SLOT_S, Outlook

HORIZON_S = 300.0
"""Age beyond which a slot is dropped."""
HALF_LIFE_S = 90.0
"""Age at which a slot counts half."""
BLOCK_SLOTS = 4
"""Slots that are taken together for the error: requests next to each other share their fate, and bursts last as long as that."""
CANDIDATES_MOST = 64


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate against another.

    Attributes:
        share: Difference of weighted good requests over those asked, -1 to 1.
        error: Its standard error, from how the difference scatters over blocks of slots; 1 with fewer than three blocks.
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
    """Slots of replays by candidate."""

    def __init__(self) -> None:
        self._slots: dict[str, dict[int, tuple[float, float]]] = {}
        self._newest = 0

    def add(self, outlook: Outlook) -> None:
        """Takes a replay's word, in place of what an older one said of the same slots."""
        label = outlook.candidate.label
        held = self._slots.pop(label, {})
        # The first and the last slot of a window are cut off: only whole ones are compared.
        inner = sorted(outlook.slots)[1:-1]
        held.update((slot, outlook.slots[slot]) for slot in inner)
        self._slots[label] = held
        self._newest = max(self._newest, max(held, default=0))
        oldest = self._newest - HORIZON_S / SLOT_S
        for slots in self._slots.values():
            for slot in [slot for slot in slots if slot < oldest]:
                del slots[slot]
        while len(self._slots) > CANDIDATES_MOST:
            del self._slots[next(iter(self._slots))]

    def forget(self) -> None:
        """The workload has changed."""
        self._slots.clear()

    def gain(self, one: Candidate, other: Candidate) -> Gain | None:
        """How much more is good under one than under the other; None where no slot was replayed under both."""
        mine, theirs = self._slots.get(one.label, {}), self._slots.get(other.label, {})
        common = sorted(mine.keys() & theirs.keys())
        weights = {slot: 0.5 ** ((self._newest - slot) * SLOT_S / HALF_LIFE_S) for slot in common}
        asked = sum(weights[slot] * theirs[slot][1] for slot in common)
        if asked <= 0.0:
            return None
        good = other_good = 0.0
        differences: dict[int, float] = {}
        for slot in common:
            # Two replays may be of samples of other sizes: what is compared are shares, weighted alike.
            weight = weights[slot] * theirs[slot][1] / asked
            mine_share, their_share = _rate(mine[slot]), _rate(theirs[slot])
            good += weight * mine_share
            other_good += weight * their_share
            differences[slot] = mine_share - their_share
        share = good - other_good
        blocks: dict[int, float] = {}
        for slot in common:
            residual = weights[slot] * theirs[slot][1] * (differences[slot] - share)
            blocks[slot // BLOCK_SLOTS] = blocks.get(slot // BLOCK_SLOTS, 0.0) + residual
        error = 1.0
        if len(blocks) >= 3:
            error = sqrt(sum(residual**2 for residual in blocks.values()) * len(blocks) / (len(blocks) - 1)) / asked
        return Gain(share=share, error=error, good=good, other_good=other_good)

    def hindsight(self, chosen: Candidate, from_s: float, until_s: float) -> Hindsight | None:
        """Who would have been best in a span, of those replayed on the same slots as the chosen one; None where that one was not."""
        mine = self._within(chosen.label, from_s, until_s)
        if not mine:
            return None
        chosen_good = _share(mine)
        found = Hindsight(best=chosen.label, best_good=chosen_good, chosen_good=chosen_good)
        for label in sorted(self._slots):
            theirs = self._within(label, from_s, until_s)
            if theirs.keys() == mine.keys() and (good := _share(theirs)) > found.best_good:
                found = Hindsight(best=label, best_good=good, chosen_good=chosen_good)
        return found

    def _within(self, label: str, from_s: float, until_s: float) -> dict[int, tuple[float, float]]:
        return {slot: word for slot, word in self._slots.get(label, {}).items() if from_s <= slot * SLOT_S < until_s}


def _rate(word: tuple[float, float]) -> float:
    return word[0] / word[1] if word[1] > 0.0 else 0.0


def _share(slots: dict[int, tuple[float, float]]) -> float:
    asked = sum(asked for _, asked in slots.values())
    return sum(good for good, _ in slots.values()) / asked if asked > 0.0 else 0.0
