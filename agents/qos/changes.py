"""Change points of a figure: when it changed, and from what to what. Pure and bounded.

A self-starting CUSUM adds up scores whose noise has the same size at any level: 2 sqrt(n + 3/8) of an arrival count n (Anscombe), the mean
logarithm of lengths, and the distance of a block's mix from the earlier mix (the root of Freeman and Tukey's).
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
"""Blocks kept: a change is measured from the mean of the blocks before it, at most ten windows."""


AROUND = 3
"""Blocks before the CUSUM left 0 that may also have been the first of the change."""


@dataclass(frozen=True, slots=True)
class Block:
    """A figure in one block of time: its level is `amount` over `base`; `score` has the weight `weight`; `counts` holds a mix."""

    start_s: float
    amount: float
    base: float
    score: float = 0.0
    weight: float = 1.0
    counts: Counts | None = None


Scorer = Callable[[Block], float | None]


def as_told(block: Block) -> float:
    """Returns the score that the block carries."""
    return block.score


class MixScorer:
    """Distance of a block's mix from the mix of all blocks before it."""

    def __init__(self) -> None:
        self._so_far: npt.NDArray[np.float64] | None = None

    def __call__(self, block: Block) -> float | None:
        """Returns twice the root of the sum of (sqrt(seen) - sqrt(expected))^2 over kinds; None for the first block.

        The expectation rests on a finite number of requests, which adds to the distance. The result is divided by this contribution, so
        that it does not fall as the number grows.
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
        floor: Smallest deviation assumed for its scores.
        both: Whether a fall also counts as a change.
        scorer: Creates the scorer of blocks, again after each change.
        kinds: Names of the kinds of a mix; empty if the figure is no mix.
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
        """Starts again: earlier blocks say nothing about what follows."""
        self._begin(())

    def offer(self, block: Block, now_s: float) -> ChangePoint | None:
        """Takes the next block and returns a change if it is now certain; its time is the start of its first block."""
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
    """Returns where the mean most likely changed: the first index of the later part, 1 to len - 1.

    The CUSUM has been above 0 for `run` blocks, but it often leaves 0 by chance before the change. Among the places since shortly before
    then, the likeliest under normal noise is the one whose two parts differ most from each other and least within.
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
    """Returns 0, the share of requests that changed kind (total variation), and the kind whose share changed most, in words."""
    was, now = _mix(before, len(kinds)), _mix(after, len(kinds))
    most = int(np.abs(now - was).argmax())
    return 0.0, float(np.abs(now - was).sum()) / 2.0, f"{kinds[most]} {was[most]:.0%} -> {now[most]:.0%}"


def _mix(blocks: Sequence[Block], kinds: int) -> npt.NDArray[np.float64]:
    total = sum((block.counts for block in blocks if block.counts is not None), np.zeros(kinds, np.int64))
    return total / max(1, int(total.sum()))
