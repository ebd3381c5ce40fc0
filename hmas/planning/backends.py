"""Runs the cases of a study on the cores of this machine: a plain function over byte strings, in processes of their own."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from hmas.planning import StudyError

Work = Callable[[bytes], bytes]
Answers = Generator[tuple[int, bytes], None, None]
Backend = Callable[[Work, Sequence[bytes]], Answers]
"""Maps a module-level function over tasks and yields (index of the task, answer) as they finish. Closing it early ends running tasks."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cores(workers: int = 0) -> Backend:
    """A backend of processes on this machine, 0 for one per core; with 1 the work runs in this process."""
    count = workers or cores()

    def run(work: Work, tasks: Sequence[bytes]) -> Answers:
        if count == 1 or len(tasks) == 1:
            yield from ((place, work(task)) for place, task in enumerate(tasks))
            return
        yield from _in_processes(work, tasks, min(count, len(tasks)))

    return run


def _in_processes(work: Work, tasks: Sequence[bytes], workers: int) -> Answers:
    before = set(multiprocessing.active_children())
    # New interpreters, so that threads and settings of this process cannot affect a result.
    context = multiprocessing.get_context("spawn")
    # An interrupt is left to the parent.
    executor = ProcessPoolExecutor(workers, context, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    finished = False
    try:
        futures = {executor.submit(work, task): place for place, task in enumerate(tasks)}
        for future in as_completed(futures):
            # A finished future is removed, because otherwise every answer would stay in memory.
            yield futures.pop(future), future.result()
        finished = True
    except BrokenProcessPool as error:
        raise StudyError("a worker process died, for want of memory perhaps; what was finished is kept. Try fewer --workers") from error
    finally:
        if not finished:
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
        # Waiting leaves the end of the interpreter nothing to do, which would otherwise meet a pool that is half closed.
        executor.shutdown(cancel_futures=True)
