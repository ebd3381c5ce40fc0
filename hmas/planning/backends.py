"""Backends that run the cases of a study: this machine's cores, or a Ray cluster. Both take a plain function and byte strings."""

import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from hmas.planning.errors import StudyError

Work = Callable[[bytes], bytes]
Answers = Generator[tuple[int, bytes], None, None]
Backend = Callable[[Work, Sequence[bytes]], Answers]
"""Maps a module-level function over tasks and yields (index of the task, answer) as they finish. Closing it early ends running tasks."""

RAY_MISSING = "the Ray backend needs the package ray; install it with: pip install 'h-mas[ray]'"
IN_FLIGHT = 4
"""Tasks submitted at once per CPU of a Ray cluster."""


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


def on_ray(address: str = "") -> Backend:
    """A backend on the Ray cluster at `address`; if empty, on the one that the environment names, else on a local one.

    Raises:
        StudyError: The package is not installed, or the cluster cannot be reached.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise StudyError(RAY_MISSING) from error

    def run(work: Work, tasks: Sequence[bytes]) -> Answers:
        try:
            ray.init(address=address or None, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise StudyError(f"Ray at {address or 'its default address'}: {error}") from error
        try:
            yield from _on_cluster(ray, work, tasks)
        except ray.exceptions.RayError as error:
            raise StudyError(f"a task on the Ray cluster failed; what was finished is kept: {str(error).splitlines()[-1]}") from error
        finally:
            ray.shutdown()

    return run


def _in_processes(work: Work, tasks: Sequence[bytes], workers: int) -> Answers:
    before = set(multiprocessing.active_children())
    # New interpreters, so that threads and settings of this process cannot affect a result.
    executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_interrupts_to_parent)
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
        executor.shutdown(wait=finished, cancel_futures=True)
        if not finished:
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _on_cluster(ray: Any, work: Work, tasks: Sequence[bytes]) -> Answers:
    remote = ray.remote(num_cpus=1, max_retries=2)(work)
    most = max(1, int(IN_FLIGHT * ray.cluster_resources().get("CPU", 1)))
    coming = iter(enumerate(tasks))
    pending: dict[Any, int] = {}
    try:
        while True:
            for place, task in coming:
                pending[remote.remote(task)] = place
                if len(pending) >= most:
                    break
            if not pending:
                return
            done, _ = ray.wait(list(pending), num_returns=1)
            for reference in done:
                yield pending.pop(reference), ray.get(reference)
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
