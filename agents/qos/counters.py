"""The counters of both windows: the layout of a row, and a ring of sub-windows. Pure.

Both windows begin with the same columns; the long one has more. All counters are whole numbers, so a window's sums do not depend on the
order in which its parts arrived.
"""

import math
from array import array
from typing import Final

import numpy as np

from hmas.agents.qos.sketch import Counts, LogBuckets
from hmas.controller.core.types import TaskType

TIMES: Final = LogBuckets(0.01, 1e7)
"""Buckets for milliseconds, from 10 microseconds to almost three hours."""
TOKENS: Final = LogBuckets(1.0, 1e7)
TASKS: Final = tuple(task.value for task in TaskType if task is not TaskType.UNKNOWN)
"""Task types that a mix is made of. `unknown` is none: perception is not asked about every request, and how many it is asked about changes
with the load, which would look like a change of the mix."""

# What requests count as when they end, and the growth of the overdue requests: together, a tally.
TTFT: Final = 0
TPOT: Final = TTFT + TIMES.size
JUDGED: Final = TPOT + TIMES.size
MET, TTFT_MISSED, TPOT_MISSED, QUEUE_MISSED, OVERDUE = range(JUDGED + 1, JUDGED + 6)
SERVED: Final = JUDGED + 6
"""Tokens that engines served, whole prompts and output."""
PRODUCED: Final = JUDGED + 7
"""Output tokens."""
SHORT_WIDTH: Final = PRODUCED + 1

ARRIVED: Final = SHORT_WIDTH
PEAK: Final = SHORT_WIDTH + 1
"""Largest number of arrivals per second, in thousandths; the only column that is a maximum."""
SNAPSHOTS: Final = SHORT_WIDTH + 2
ENDED: Final = SHORT_WIDTH + 3
ASKED_OUTPUT: Final = SHORT_WIDTH + 4
"""Output tokens that the ended requests asked for."""
PROMPT_SUM, COMPLETED, OUTPUT_SUM, DISPATCHED, SERVED_LATE = range(SHORT_WIDTH + 5, SHORT_WIDTH + 10)
TASK: Final = SHORT_WIDTH + 10
SERVICE: Final = TASK + len(TASKS)
PROMPT: Final = SERVICE + TIMES.size
OUTPUT: Final = PROMPT + TOKENS.size
LONG_WIDTH: Final = OUTPUT + TOKENS.size

TASK_COLUMN: Final = {task: TASK + number for number, task in enumerate(TASKS)}


class PaneRing:
    """Counters of the last `span_s` seconds, with one row per sub-window ("pane").

    A window begins at a pane: it covers `span_s` to `span_s` plus one pane. Rates use the span that it really covers (`start_s`). A late
    message counts in the pane of its own time, so the order of arrival does not matter within the window.

    Args:
        span_s: Smallest span of the window, more than 0.
        panes: Panes in it: the edge of the window is `span_s / panes` seconds wide.
        width: Counters in a row.

    Attributes:
        cells: All counters; `row` returns where a row begins. Callers write to it directly, because a call per counter would cost more than
            the rest.
        pane_s: Span of a pane, seconds.
        head: Number of the newest pane; panes are numbered from the epoch. None before the first.
        rows: Rows held: `panes` + 1.
    """

    def __init__(self, span_s: float, panes: int, width: int) -> None:
        self.pane_s = span_s / panes
        self.rows = panes + 1
        self.head: int | None = None
        self.cells = array("q", bytes(8 * self.rows * width))
        self._matrix: Counts = np.frombuffer(self.cells, dtype=np.int64).reshape(self.rows, width)
        self._width = width

    def number(self, at_s: float) -> int:
        """Returns the number of the pane that contains a time."""
        return math.floor(at_s / self.pane_s)

    def row(self, at_s: float) -> int:
        """Returns where the row of a time begins in `cells`, advancing the window if it is ahead; -1 if it is before the window."""
        number = self.number(at_s)
        if self.head is None or number > self.head:
            self._move(number)
        elif number <= self.head - self.rows:
            return -1
        return number % self.rows * self._width

    def row_of(self, number: int) -> int:
        """Returns where the row of a held pane begins: from `first` to `head`."""
        return number % self.rows * self._width

    def move(self, now_s: float) -> None:
        """Advances the window to a time; no effect if it is already there."""
        number = self.number(now_s)
        if self.head is None or number > self.head:
            self._move(number)

    def clear(self) -> None:
        """Forgets everything."""
        self._matrix[:] = 0
        self.head = None

    def clear_columns(self, first: int, last: int) -> None:
        """Clears the counters `first` to `last` of all panes."""
        self._matrix[:, first : last + 1] = 0

    @property
    def first(self) -> int:
        """Number of the oldest held pane; 0 before the first."""
        return 0 if self.head is None else self.head - self.rows + 1

    @property
    def start_s(self) -> float:
        """Start of the window."""
        return self.first * self.pane_s

    def total(self) -> Counts:
        """Returns the sums over the window."""
        whole: Counts = self._matrix.sum(axis=0)
        return whole

    def sum_of(self, column: int) -> int:
        """Returns the sum of one counter over the window."""
        return int(self._matrix[:, column].sum())

    def between(self, first: int, last: int) -> Counts:
        """Returns the sums over the panes with these numbers, as far as they are held."""
        numbers = range(max(first, self.first), last + 1)
        part: Counts = self._matrix[[number % self.rows for number in numbers]].sum(axis=0)
        return part

    def columns(self, first: int, last: int) -> Counts:
        """Returns the counters `first` to `last` of every pane, oldest pane first; shape (rows, last - first + 1)."""
        order = [number % self.rows for number in range(self.first, self.first + self.rows)]
        return self._matrix[order, first : last + 1]

    def _move(self, number: int) -> None:
        before = number - 1 if self.head is None else self.head
        steps = number - before
        if steps >= self.rows:
            self._matrix[:] = 0
        else:
            for entered in range(before + 1, number + 1):
                self._matrix[entered % self.rows] = 0
        self.head = number
