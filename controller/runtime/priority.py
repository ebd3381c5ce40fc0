"""The CPU priority of a process."""

import contextlib
import os


def set_niceness(nice: int, *, spare_cpu_only: bool) -> None:
    """Lowers the CPU priority of this process and of the threads that it starts afterwards.

    Args:
        nice: The least niceness of the process; a higher niceness stays.
        spare_cpu_only: Run only on an idle processor (SCHED_IDLE on Linux): any process of another class that wakes takes the processor at
            once. On other systems, or if the kernel refuses, only the niceness applies.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if spare_cpu_only and hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
