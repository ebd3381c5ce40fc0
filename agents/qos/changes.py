"""Change points of a figure: when it changed, and from what to what. Pure and bounded.

A self-starting CUSUM (Hawkins 1987) needs no prior knowledge of the figure. Each block's score is compared with mean and deviation of
the blocks before it, converted to a standard normal figure with the matching t distribution, and added up beyond a slack. While the
scores are independent and normal, the figures are independent standard normal from the first on, so the rate of false alarms is that
of the plain CUSUM. The scores have noise of the same size at any level: 2 sqrt(n + 3/8) of an arrival count n (Anscombe), the mean
logarithm of lengths, and the distance of a block's mix from the earlier mix (the root of Freeman and Tukey's).
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmas.agents.qos.sketch import Counts
from hmas.controller.core.messages.views import ChangePoint

SLACK = 0.5
"""Standard deviations subtracted from each block (k): tuned to a shift of one deviation."""
LIMIT = 8.0
"""Sum at which a change is reported (h). By Siegmund's approximation one side gives a false alarm once in
(exp(2 k b) - 1 - 2 k b) / (2 k^2) blocks with b = h + 1.166, which is 19,000; two sides together once in 9,500."""
CLIP = 4.0
"""Largest step of one block: a single one is an outlier, and a change needs at least three in a row."""
WARM_UP = 8
"""Blocks before the first is judged."""
MEMORY = 240
"""Effective number of blocks behind mean and deviation: older ones fade, so a slow drift is followed and only a break is reported."""
HISTORY = 132
"""Blocks kept: a change is measured from the mean of the blocks before it, at most ten windows."""
AROUND = 3
"""Blocks before the CUSUM left 0 that may also have been the first of the change."""


class Reference:
    """Mean and deviation of the scores so far.

    A score with weight w has the variance s^2 / w; s is kept.

    Args:
        floor: Smallest s that is used, more than 0.
    """

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._blocks = 0.0
        self._weight = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def judge(self, score: float, weight: float = 1.0) -> float | None:
        """Takes a score and returns how unusual it is, a standard normal figure within -CLIP and CLIP; None during warm-up."""
        found: float | None = None
        if self._weight > 0.0:
            scale = math.sqrt(1.0 / weight + 1.0 / self._weight)
            if self._blocks >= WARM_UP:
                deviation = max(self._floor, math.sqrt(self._squares / (self._blocks - 1.0)))
                found = standard_normal((score - self._mean) / (scale * deviation), self._blocks - 1.0)
                # An outlier must not make the reference insensitive to all that follows.
                reach = CLIP * scale * deviation
                score = min(self._mean + reach, max(self._mean - reach, score))
            self._squares += ((score - self._mean) / scale) ** 2
        if self._blocks >= MEMORY:
            fade = 1.0 - 1.0 / MEMORY
            self._squares, self._weight, self._blocks = self._squares * fade, self._weight * fade, self._blocks * fade
        self._weight += weight
        self._mean += weight / self._weight * (score - self._mean)
        self._blocks += 1.0
        return found


def standard_normal(t: float, freedom: float) -> float:
    """Converts a t with `freedom` degrees of freedom to the equally likely standard normal figure, within 0.01 from 7 on (Wallace 1959)."""
    figure = (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.copysign(min(CLIP, figure), t)


class Cusum:
    """One side of a CUSUM.

    Attributes:
        run: Blocks since the sum was last 0; a reported change began with the first of them.
    """

    def __init__(self) -> None:
        self.sum = 0.0
        self.run = 0

    def add(self, figure: float) -> bool:
        """Takes a block, with the sign that counts on this side; returns True if there is a change to report."""
        self.sum = max(0.0, self.sum + figure - SLACK)
        self.run = self.run + 1 if self.sum > 0.0 else 0
        return self.sum > LIMIT


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
