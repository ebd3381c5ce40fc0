"""A process's claim on the CPU."""

import contextlib
import os


def set_niceness(nice: int, *, spare_cpu_only: bool) -> None:
    """Lowers this process's claim, and that of the threads it starts from here on.

    Args:
        nice: It becomes at least that nice; one that is nicer already stays so.
        spare_cpu_only: Linux then runs it only where a processor is idle (SCHED_IDLE): a process of any niceness that wakes takes the
            processor from it at once. Elsewhere, and where the kernel refuses, niceness alone counts.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if spare_cpu_only and hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
