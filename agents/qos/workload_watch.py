"""Watches the workload for change points: arrival rate, mean prompt, mean output, mix of task types. Pure and bounded."""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from hmas.agents.qos import counters as col
from hmas.agents.qos.changes import Block, MixScorer, Watch
from hmas.agents.qos.counters import PaneRing
from hmas.agents.qos.sketch import Counts
from hmas.agents.qos.tallies import LONG_PANES
from hmas.controller.core.messages.views import ChangePoint

BLOCKS = 12
"""Blocks in a long window: 5 s each for a window of a minute."""
GRACE = 1
"""Sub-windows by which a block waits for late messages; later ones are in no block."""
_PANES = LONG_PANES // BLOCKS
ARRIVALS, PROMPTS, OUTPUTS, TASKS = "arrival_rps", "prompt_mean", "output_mean", "by_task"
SAMPLES_MIN = 5
"""Fewest requests in a block of lengths or of a mix; smaller blocks are joined with the next."""
CHANGES_MAX = 16
"""Most changes kept."""
POISSON_FLOOR = 1.0
"""Deviation of the score of a Poisson count: arrivals are assumed to be no steadier."""
LENGTH_FLOOR = 0.05
"""Smallest deviation of ln(tokens): if all lengths are the same, one that differs slightly is no change of the workload."""
MIX_FLOOR = 0.6
"""About the deviation of the distance of two samples of one mix: 0.60 with two kinds, 0.71 with many (a chi variable's)."""


class Lengths(NamedTuple):
    """Lengths of a block: their number, their sum, the sum of their logarithms."""

    start_s: float
    number: int
    tokens: int
    logs: float


class WorkloadWatch:
    """The watches of all four figures, by blocks of `block_s`. `kinds`: names of the task types, in the order of their counts."""

    def __init__(self, block_s: float, kinds: Sequence[str]) -> None:
        self._block_s = block_s
        self._arrivals = Watch(ARRIVALS, POISSON_FLOOR)
        self._lengths = {PROMPTS: Watch(PROMPTS, LENGTH_FLOOR), OUTPUTS: Watch(OUTPUTS, LENGTH_FLOOR)}
        self._tasks = Watch(TASKS, MIX_FLOOR, both=False, scorer=MixScorer, kinds=kinds)
        self._short_lengths: dict[str, Lengths] = {}
        self._short_mix: tuple[float, Counts] | None = None
        self._found: deque[ChangePoint] = deque(maxlen=CHANGES_MAX)

    def since(self, at_s: float) -> list[ChangePoint]:
        """Returns the changes found at that time or later, oldest first."""
        return [change for change in self._found if change.found_s >= at_s]

    def reset_arrivals(self) -> None:
        """Resets the watch of arrivals, because another gateway counts them now."""
        self._arrivals.reset()

    def reset(self) -> None:
        """Forgets everything, because the clock went back."""
        for watch in (self._arrivals, self._tasks, *self._lengths.values()):
            watch.reset()
        self._short_lengths.clear()
        self._short_mix = None
        self._found.clear()

    def arrivals(self, start_s: float, number: int, now_s: float) -> None:
        """Takes the arrivals of a block that was observed from start to end."""
        score = 2.0 * math.sqrt(number + 0.375)
        self._note(self._arrivals.offer(Block(start_s, number, self._block_s, score), now_s))

    def lengths(self, figure: str, block: Lengths, now_s: float) -> None:
        """Takes the lengths of a block: `PROMPTS` or `OUTPUTS`."""
        short = self._short_lengths.pop(figure, None)
        if short is not None:
            block = Lengths(short.start_s, short.number + block.number, short.tokens + block.tokens, short.logs + block.logs)
        if block.number < SAMPLES_MIN:
            if block.number:
                self._short_lengths[figure] = block
            return
        told = Block(block.start_s, block.tokens, block.number, block.logs / block.number, block.number)
        self._note(self._lengths[figure].offer(told, now_s))

    def tasks(self, start_s: float, counts: Counts, now_s: float) -> None:
        """Takes the requests of a block by task type."""
        if self._short_mix is not None:
            start_s, counts = self._short_mix[0], self._short_mix[1] + counts
            self._short_mix = None
        number = int(counts.sum())
        if number < SAMPLES_MIN:
            if number:
                self._short_mix = (start_s, counts)
            return
        self._note(self._tasks.offer(Block(start_s, 0.0, number, counts=counts), now_s))

    def _note(self, change: ChangePoint | None) -> None:
        if change is not None:
            self._found.append(change)


class Blocks:
    """Cuts the long window into blocks.

    Args:
        ring: The long window; its columns are those of `hmas.agents.qos.counters`.

    Attributes:
        changes: The watch with the changes found.
    """

    def __init__(self, ring: PaneRing) -> None:
        self._ring = ring
        self._next: int | None = None
        self.changes = WorkloadWatch(_PANES * ring.pane_s, col.TASKS)

    def advance(self, now_s: float, gateway_since_s: float) -> None:
        """Examines the blocks that have ended. Arrivals count only in blocks that the present gateway counted from start to end."""
        current = (self._ring.number(now_s) - GRACE) // _PANES
        first = current if self._next is None else max(self._next, current - BLOCKS + 1)
        for block in range(first, current):
            self._look(block, now_s, gateway_since_s)
        self._next = max(first, current)

    def forget(self) -> None:
        """Forgets everything, because the clock went back."""
        self._next = None
        self.changes.reset()

    def _look(self, block: int, now_s: float, gateway_since_s: float) -> None:
        ring, start_s = self._ring, block * _PANES * self._ring.pane_s
        row = ring.between(block * _PANES, (block + 1) * _PANES - 1)
        # A block without a snapshot was not watched: unreported arrivals do not mean that there were none.
        if start_s >= gateway_since_s and row[col.SNAPSHOTS]:
            self.changes.arrivals(start_s, int(row[col.ARRIVED]), now_s)
        for figure, number, tokens, counts in (
            (PROMPTS, int(row[col.ENDED]), int(row[col.PROMPT_SUM]), row[col.PROMPT : col.OUTPUT]),
            (OUTPUTS, int(row[col.COMPLETED]), int(row[col.OUTPUT_SUM]), row[col.OUTPUT :]),
        ):
            self.changes.lengths(figure, Lengths(start_s, number, tokens, number * col.TOKENS.log_mean(counts)), now_s)
        self.changes.tasks(start_s, row[col.TASK : col.SERVICE], now_s)
