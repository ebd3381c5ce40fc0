"""Passes the long window's sub-windows, grouped into blocks, to the change-point detection. Pure."""

from hmas.agents.qos import columns as col
from hmas.agents.qos.panes import PaneRing
from hmas.agents.qos.tallies import LONG_PANES
from hmas.agents.qos.workload_watch import OUTPUTS, PROMPTS, Lengths, WorkloadWatch

BLOCKS = 12
"""Blocks in a long window: 5 s each for a window of a minute."""
GRACE = 1
"""Sub-windows by which a block waits for late messages; later ones are in no block."""
_PANES = LONG_PANES // BLOCKS


class Blocks:
    """Cuts the long window into blocks.

    Args:
        ring: The long window; its columns are those of `hmas.agents.qos.columns`.

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

    def forget_arrivals(self) -> None:
        """Forgets arrivals, because another gateway counts them now."""
        self.changes.reset_arrivals()

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
