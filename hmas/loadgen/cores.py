"""Keeps a measurement off the cores that an engine computes on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def beside(cores: str) -> Iterator[bool]:
    """Until the block ends this process, and what it starts meanwhile, runs on the other cores.

    On a small machine the client and the engine's own front end are else put on the core that computes, now and then, and more often the
    higher the load: the engine gets slower with load by more than any model of it could know.

    Args:
        cores: Those to keep off, as VLLM_CPU_OMP_THREADS_BIND takes them: `0`, `0-3`, `0,2`.

    Yields:
        Whether there are other cores; without any nothing changes.
    """
    before = os.sched_getaffinity(0)
    others = before - _numbers(cores)
    if not others:
        yield False
        return
    os.sched_setaffinity(0, others)
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)


def _numbers(cores: str) -> set[int]:
    found: set[int] = set()
    for part in cores.replace("|", ",").split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
