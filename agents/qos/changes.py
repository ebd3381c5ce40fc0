"""Change points of a figure: when it changed, and from what to what. Pure and bounded.

What a self-starting CUSUM adds up is a score in which noise has the same size whatever the level: 2 sqrt(n + 3/8) of an arrival count n
(Anscombe), the mean logarithm of lengths, and the distance of a block's mix from the mix before it (the root of Freeman and Tukey's).
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmas.agents.qos.self_starting import MEMORY, Cusum, Reference
from hmas.agents.qos.sketch import Counts
from hmas.controller.core.messages.views import ChangePoint

HISTORY = 132
"""Blocks kept: a change is measured from the mean of those before it, ten windows at most."""


AROUND = 3
"""Blocks before the CUSUM left 0 that may have been the first of the change too."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a block of time says of a figure: its level is `amount` over `base`, its score weighs `weight`; `counts` is a mix."""

    start_s: float
    amount: float
    base: float
    score: float = 0.0
    weight: float = 1.0
    counts: Counts | None = None


Scorer = Callable[[Block], float | None]


def as_told(block: Block) -> float:
    """The score that the block brings along."""
    return block.score


class MixScorer:
    """Distance of a block's mix from the mix of all blocks before."""

    def __init__(self) -> None:
        self._so_far: npt.NDArray[np.float64] | None = None

    def __call__(self, block: Block) -> float | None:
        """Twice the root of the sum of (sqrt(seen) - sqrt(expected))^2 over kinds; None for the first block.

        Divided by what the finite number of requests behind the expectation adds to it, so that it does not fall as that number grows.
        """
        if block.counts is None:
            return None
        seen = block.counts.astype(np.float64)
        before, self._so_far = self._so_far, seen if self._so_far is None else self._so_far * (1.0 - 1.0 / MEMORY) + seen
        if before is None:
            return None
        ratio = float(seen.sum() / before.sum())
        apart = np.sqrt(seen) - np.sqrt(before * ratio)
        return 2.0 * math.sqrt(float(apart @ apart) / (1.0 + ratio))


class Watch:
    """Watches one figure.

    Args:
        figure: Its name.
        floor: Least deviation of its scores that is believed.
        both: Whether a fall counts as a change too.
        scorer: Makes what scores blocks; anew after each change.
        kinds: Names of the kinds of a mix; empty where the figure is none.
    """

    def __init__(
        self, figure: str, floor: float, *, both: bool = True, scorer: Callable[[], Scorer] = lambda: as_told, kinds: Sequence[str] = ()
    ) -> None:
        self._figure = figure
        self._floor = floor
        self._both = both
        self._scorer = scorer
        self._kinds = kinds
        self._history: deque[tuple[Block, float | None]] = deque(maxlen=HISTORY)
        self._begin(())

    def reset(self) -> None:
        """Begins anew: what came before says nothing about what follows."""
        self._begin(())

    def offer(self, block: Block, now_s: float) -> ChangePoint | None:
        """Takes the next block and returns the change that it makes certain, if any; its time is the start of the block it began with."""
        unusual = self._judge(block)
        if unusual is None:
            return None
        rose = self._up.add(unusual)
        fell = self._down.add(-unusual) and self._both
        if not (rose or fell):
            return None
        first = _break([(score, block.weight) for block, score in self._history], (self._up if rose else self._down).run)
        blocks = [block for block, _ in self._history]
        before, after = blocks[:first], blocks[first:]
        self._begin(after)
        was, now, detail = _mixes(before, after, self._kinds) if self._kinds else (_level(before), _level(after), "")
        return ChangePoint(figure=self._figure, at_s=after[0].start_s, found_s=now_s, before=was, after=now, detail=detail)

    def _begin(self, blocks: Sequence[Block]) -> None:
        self._history.clear()
        self._reference = Reference(self._floor)
        self._up, self._down = Cusum(), Cusum()
        self._score = self._scorer()
        for block in blocks:
            self._judge(block)

    def _judge(self, block: Block) -> float | None:
        score = self._score(block)
        self._history.append((block, score))
        return None if score is None else self._reference.judge(score, block.weight)


def _break(scores: Sequence[tuple[float | None, float]], run: int) -> int:
    """Where the mean most likely changed: the first place of the part behind, 1 to len - 1.

    The CUSUM has been above 0 for `run` blocks, but it often left 0 by chance before the change. Of the places since shortly before then,
    the one whose parts differ most from each other, and least within, is the likeliest with normal noise.
    """
    values = np.array([0.0 if score is None else score for score, _ in scores])
    weights = np.array([0.0 if score is None else weight for score, weight in scores])
    weight, mass = weights.cumsum()[:-1], (weights * values).cumsum()[:-1]
    left, right = weight, weights.sum() - weight
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = mass / left - ((weights * values).sum() - mass) / right
        gain = np.nan_to_num(gap * gap * left * right)
    since = max(0, len(scores) - 1 - run - AROUND)
    return since + int(gain[since:].argmax()) + 1


def _level(blocks: Sequence[Block]) -> float:
    base = math.fsum(block.base for block in blocks)
    return math.fsum(block.amount for block in blocks) / base if base > 0.0 else 0.0


def _mixes(before: Sequence[Block], after: Sequence[Block], kinds: Sequence[str]) -> tuple[float, float, str]:
    """0, the share of requests that are of another kind now (total variation), and the kind whose share changed most, in words."""
    was, now = _mix(before, len(kinds)), _mix(after, len(kinds))
    most = int(np.abs(now - was).argmax())
    return 0.0, float(np.abs(now - was).sum()) / 2.0, f"{kinds[most]} {was[most]:.0%} -> {now[most]:.0%}"


def _mix(blocks: Sequence[Block], kinds: int) -> npt.NDArray[np.float64]:
    total = sum((block.counts for block in blocks if block.counts is not None), np.zeros(kinds, np.int64))
    return total / max(1, int(total.sum()))
