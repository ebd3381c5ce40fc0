"""Keeps a measurement off the cores on which an engine computes, and an engine on its own."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager


@contextmanager
def beside(cores: str) -> Iterator[bool]:
    """Runs this process, and processes that it starts meanwhile, on the other cores until the block ends.

    Otherwise, on a small machine, the client and the engine's front end sometimes run on the core that computes, and more often at higher
    load. The engine then slows down with load more than a model of it could predict.

    Args:
        cores: Cores to avoid, in the format of VLLM_CPU_OMP_THREADS_BIND: `0`, `0-3`, `0,2`.

    Yields:
        Whether there are other cores; if not, nothing changes.
    """
    others = os.sched_getaffinity(0) - core_numbers(cores)
    if not others:
        yield False
        return
    with only_on(others):
        yield True


@contextmanager
def only_on(cores: Collection[int]) -> Iterator[None]:
    """Runs this process, and processes that it starts meanwhile, on these cores alone until the block ends."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def core_numbers(cores: str) -> set[int]:
    """The cores that a text in the format of VLLM_CPU_OMP_THREADS_BIND names."""
    found: set[int] = set()
    for part in cores.replace("|", ",").split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
