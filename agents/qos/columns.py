"""What the sub-windows of the views count: the layout of a row. Pure.

Both windows begin with the same columns; the long one goes on where the short one ends. All are whole numbers, so that a window comes to
the same whatever the order in which its parts came in.
"""

from typing import Final

from hmas.agents.qos.sketch import LogBuckets
from hmas.controller.core.types import TaskType

TIMES: Final = LogBuckets(0.01, 1e7)
"""Milliseconds, from 10 microseconds to almost three hours."""
TOKENS: Final = LogBuckets(1.0, 1e7)
TASKS: Final = tuple(task.value for task in TaskType)

# What requests are counted as when they end, and the growth of the overdue: together, a tally.
TTFT: Final = 0
TPOT: Final = TTFT + TIMES.size
JUDGED: Final = TPOT + TIMES.size
MET: Final = JUDGED + 1
TTFT_MISSED: Final = JUDGED + 2
TPOT_MISSED: Final = JUDGED + 3
QUEUE_MISSED: Final = JUDGED + 4
OVERDUE: Final = JUDGED + 5
SERVED: Final = JUDGED + 6
"""Tokens that engines worked on."""
PRODUCED: Final = JUDGED + 7
"""Output tokens."""
SHORT_WIDTH: Final = PRODUCED + 1

ARRIVED: Final = SHORT_WIDTH
PEAK: Final = SHORT_WIDTH + 1
"""Largest number of arrivals a second, in thousandths: the only column that is a maximum."""
LONG_WAITING: Final = SHORT_WIDTH + 2
"""Long requests waiting, summed over snapshots."""
SNAPSHOTS: Final = SHORT_WIDTH + 3
ENDED: Final = SHORT_WIDTH + 4
ASKED: Final = SHORT_WIDTH + 5
PROMPT_SUM: Final = SHORT_WIDTH + 6
COMPLETED: Final = SHORT_WIDTH + 7
OUTPUT_SUM: Final = SHORT_WIDTH + 8
DISPATCHED: Final = SHORT_WIDTH + 9
SERVED_LATE: Final = SHORT_WIDTH + 10
TASK: Final = SHORT_WIDTH + 11
SERVICE: Final = TASK + len(TASKS)
PROMPT: Final = SERVICE + TIMES.size
OUTPUT: Final = PROMPT + TOKENS.size
LONG_WIDTH: Final = OUTPUT + TOKENS.size

TASK_COLUMN: Final = {task: TASK + number for number, task in enumerate(TASKS)}
