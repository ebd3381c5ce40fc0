"""Work that an agent hands to its shell: what takes longer than a moment runs in a thread of its own, and the agent goes on meanwhile."""

import asyncio
import inspect
import math
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hmas.controller.core.messages import Message

T = TypeVar("T")
BRIEF_MS = 3.0
"""Work that takes less is done on the loop: the way to the thread and back would cost as much again."""
SMOOTHED = 0.1
"""Weight of the newest measurement in a pace that rises."""


@dataclass(frozen=True, slots=True)
class Deferred(Generic[T]):
    """A piece of work in two halves.

    Attributes:
        compute: The long half. A plain function runs in the lane's thread, one at a time, and touches nothing that the agent's other
            methods touch; a coroutine function is awaited on the loop (an answer from a server).
        finish: The short half, back on the loop, where nothing else of the agent runs: takes the result and the time, returns what to post.
    """

    compute: Callable[[], T | Awaitable[T]]
    finish: Callable[[T, float], list[Message]]


class Pace:
    """How long one piece of some work takes, to tell what is too brief for the thread.

    It falls at once and rises slowly: the first pieces of a model, and a pause of the machine, say little of the work.
    """

    def __init__(self) -> None:
        self._piece_ms = math.inf

    def is_brief(self, pieces: int) -> bool:
        """Whether so many pieces are done on the loop before they could be handed over and back; never before one was measured."""
        return self._piece_ms * pieces <= BRIEF_MS

    def took(self, pieces: int, took_ms: float) -> None:
        """Takes in how long so many pieces took, milliseconds; at least one piece."""
        each_ms = took_ms / pieces
        self._piece_ms = each_ms if each_ms < self._piece_ms else self._piece_ms + SMOOTHED * (each_ms - self._piece_ms)


class Lane:
    """One thread, started when it is first needed; work in it goes one after the other.

    Args:
        name: Of the thread, as `top -H` shows it.
        nice: Niceness added to that of the process: what may wait yields to what may not. 0 leaves it.
    """

    def __init__(self, name: str, nice: int = 0) -> None:
        self._name = name
        self._nice = nice
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, compute: Callable[[], T | Awaitable[T]]) -> T:
        """The result of `compute`, which runs beside the loop; what it raises is raised here."""
        if inspect.iscoroutinefunction(compute):
            found: T = await compute()
            return found
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name, initializer=self._yield)
        plain: Callable[[], Any] = compute
        result: T = await asyncio.get_running_loop().run_in_executor(self._pool, plain)
        return result

    def close(self) -> None:
        """Takes no more work. What runs now is not waited for here, but by the process before it ends."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _yield(self) -> None:
        if self._nice:
            # On Linux a thread has a niceness of its own.
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + self._nice))
