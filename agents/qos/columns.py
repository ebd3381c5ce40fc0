"""The counters of a sub-window: the layout of a row. Pure.

Both windows begin with the same columns; the long one has more. All counters are whole numbers, so a window's sums do not depend on the
order in which its parts arrived.
"""

from typing import Final

from hmas.agents.qos.sketch import LogBuckets
from hmas.controller.core.types import TaskType

TIMES: Final = LogBuckets(0.01, 1e7)
"""Buckets for milliseconds, from 10 microseconds to almost three hours."""
TOKENS: Final = LogBuckets(1.0, 1e7)
TASKS: Final = tuple(task.value for task in TaskType)

# What requests count as when they end, and the growth of the overdue requests: together, a tally.
TTFT: Final = 0
TPOT: Final = TTFT + TIMES.size
JUDGED: Final = TPOT + TIMES.size
MET: Final = JUDGED + 1
TTFT_MISSED: Final = JUDGED + 2
TPOT_MISSED: Final = JUDGED + 3
QUEUE_MISSED: Final = JUDGED + 4
OVERDUE: Final = JUDGED + 5
SERVED: Final = JUDGED + 6
"""Tokens that engines processed."""
PRODUCED: Final = JUDGED + 7
"""Output tokens."""
SHORT_WIDTH: Final = PRODUCED + 1

ARRIVED: Final = SHORT_WIDTH
PEAK: Final = SHORT_WIDTH + 1
"""Largest number of arrivals per second, in thousandths; the only column that is a maximum."""
SNAPSHOTS: Final = SHORT_WIDTH + 2
ENDED: Final = SHORT_WIDTH + 3
ASKED: Final = SHORT_WIDTH + 4
PROMPT_SUM: Final = SHORT_WIDTH + 5
COMPLETED: Final = SHORT_WIDTH + 6
OUTPUT_SUM: Final = SHORT_WIDTH + 7
DISPATCHED: Final = SHORT_WIDTH + 8
SERVED_LATE: Final = SHORT_WIDTH + 9
TASK: Final = SHORT_WIDTH + 10
SERVICE: Final = TASK + len(TASKS)
PROMPT: Final = SERVICE + TIMES.size
OUTPUT: Final = PROMPT + TOKENS.size
LONG_WIDTH: Final = OUTPUT + TOKENS.size

TASK_COLUMN: Final = {task: TASK + number for number, task in enumerate(TASKS)}
