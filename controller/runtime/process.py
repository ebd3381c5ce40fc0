"""What a process asks of the operating system and of Python's memory: open files, CPU priority, resident memory, garbage collection."""

import contextlib
import ctypes
import gc
import os
import resource
from pathlib import Path

QUIET_S = 10.0
WHOLE_S = 120.0
LATEST_S = 600.0
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 1 << 20
_YOUNG, _MIDDLE, _NEVER = 700, 5, 1_000_000_000
"""The first is Python's default; the middle generation is collected after 4,200 objects instead of 7,700, which takes 1 ms."""


def lift_limit(wanted: int) -> int:
    """Raises the soft limit of open files to `wanted`, as far as the hard limit allows; never lowers it. Returns the active limit.

    Every stream through the gateway takes two: the client's connection and the engine's.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def return_large_memory() -> None:
    """Makes glibc give memory of 1 MiB or more back to the system as soon as it is freed; does nothing where another library allocates.

    Otherwise glibc raises its threshold to the largest size that was freed, and keeps the memory of large request bodies in fragments:
    140 MB after 36 bodies of 4 MB.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


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


def resident_bytes() -> int:
    """Returns the resident memory in bytes; on a system without /proc, the peak since the start."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


class Collector:
    """Postpones the full collection to an idle moment, in a process whose event loop must not be blocked.

    A full collection takes 0.3 us per object of the oldest generation: 200 ms with 100,000 requests in the queue, which are about 600,000
    objects of the scheduler alone. By default it starts when the number of objects has grown by a quarter. The two young generations take
    about a millisecond. Nearly all objects here are freed by their reference count, so a full collection finds little: cycles of exceptions
    and tasks.

    Therefore the objects that exist when the process begins to serve are frozen, and no full collection starts by itself. `look` is called
    often. If no request is in progress, it collects the objects made since its last collection, and every two minutes the whole heap (a
    whole-heap collection takes 50 ms, nearly all of it for modules, which was half of an idle gateway's CPU). After ten minutes it collects
    in any case, so that garbage stays bounded in a process that is never idle.
    """

    def __init__(self, now_s: float) -> None:
        """Freezes the existing objects and takes over. Call it once per process, when the process is ready to serve."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        self._last_s = self._whole_s = now_s

    def look(self, now_s: float, *, quiet: bool) -> bool:
        """Collects if it is time, and returns whether it did. `quiet`: no request is in progress that a collection could delay."""
        since_s = now_s - self._last_s
        if since_s < QUIET_S or (not quiet and since_s < LATEST_S):
            return False
        if not quiet or now_s - self._whole_s >= WHOLE_S:
            gc.unfreeze()
            self._whole_s = now_s
        gc.collect()
        gc.freeze()
        self._last_s = now_s
        return True
