"""Slow work that an agent hands to its shell: it runs in a separate thread while the agent continues."""

import asyncio
import atexit
import contextlib
import inspect
import math
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from hmas.controller.core.messages import Message

T = TypeVar("T")
BRIEF_MS = 3.0
"""Work below this duration runs on the event loop: the handover to a thread and back would cost about as much."""
EXIT_WAIT_S = 5.0
"""How long the exit of the process waits for the work of each thread. A question to a server that hangs may take far longer."""
SMOOTHED = 0.1
"""Weight of the newest measurement when the average duration rises."""


@dataclass(frozen=True, slots=True)
class Deferred(Generic[T]):
    """A piece of work in two parts.

    Attributes:
        compute: The slow part. A plain function runs in the lane's thread, one at a time, and touches no state that the agent's other
            methods use. A coroutine function is awaited on the event loop (for example a request to a server).
        finish: The fast part. It runs on the event loop, alone in the agent: it takes the result and the time and returns what to post.
    """

    compute: Callable[[], T | Awaitable[T]]
    finish: Callable[[T, float], list[Message]]


class Pace:
    """Tracks how long one piece of work takes, to decide what is too brief for a thread.

    The average falls at once and rises slowly, because the first pieces of a model and a pause of the machine say little about the work.
    """

    def __init__(self) -> None:
        self._piece_ms = math.inf

    def is_brief(self, pieces: int) -> bool:
        """Whether `pieces` pieces are faster on the event loop than through a thread; False before the first measurement."""
        return self._piece_ms * pieces <= BRIEF_MS

    def took(self, pieces: int, took_ms: float) -> None:
        """Records that `pieces` pieces (at least one) took `took_ms` milliseconds together."""
        each_ms = took_ms / pieces
        self._piece_ms = each_ms if each_ms < self._piece_ms else self._piece_ms + SMOOTHED * (each_ms - self._piece_ms)


class Lane:
    """One thread that starts when it is first needed and runs its work one piece after the other.

    Args:
        name: Name of the thread, as `top -H` shows it.
        nice: Niceness added to the process's, so that work that is not urgent yields the CPU; 0 adds none.
    """

    def __init__(self, name: str, nice: int = 0) -> None:
        self._name = name
        self._nice = nice
        self._pieces: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, compute: Callable[[], T | Awaitable[T]]) -> T:
        """Runs `compute` without blocking the event loop and returns its result; exceptions of `compute` are raised here."""
        if inspect.iscoroutinefunction(compute):
            found: T = await compute()
            return found
        if self._closed:
            raise RuntimeError(f"{self._name} takes no more work: it is closed")
        if self._thread is None:
            # The interpreter would wait without a limit for a thread that is no daemon, such as that of an executor.
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        plain: Callable[[], Any] = compute
        self._pieces.put(partial(_settle, future, plain))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Ends the thread once the work it has is done; no more may be given. The process waits `EXIT_WAIT_S` for that when it exits."""
        self._closed = True
        if self._thread is not None:
            self._pieces.put(None)
            atexit.register(self._thread.join, EXIT_WAIT_S)

    def _serve(self) -> None:
        self._yield()
        while True:
            piece = self._pieces.get()
            if piece is None:
                return
            piece()
            # Otherwise its data and its result would stay in memory until the next piece comes.
            del piece

    def _yield(self) -> None:
        if self._nice:
            # On Linux each thread has its own niceness.
            thread = threading.get_native_id()
            # A sandbox may forbid it: then the work does not yield.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + self._nice))


def _settle(future: Future[T], compute: Callable[[], T]) -> None:
    """Runs a piece of work, unless it was cancelled while it waited, and passes on its result or its exception."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = compute()
    except BaseException as error:  # noqa: BLE001 - the coroutine that awaits the work raises it
        future.set_exception(error)
    else:
        future.set_result(result)
