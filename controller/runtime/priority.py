"""A process's claim on the CPU."""

import os


def yield_to_serving(nice: int) -> None:
    """Makes this process at least that nice; one that is nicer already stays so."""
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
