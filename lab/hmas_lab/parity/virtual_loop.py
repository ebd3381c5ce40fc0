"""An event loop in virtual time: real sockets inside one process, without any waiting."""

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Args = TypeVarTuple("Args")

QUIET_POLLS = 3
"""Empty polls in a row before a moment counts as over. Loopback delivers within the call that sends, so this is a safety margin."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: a process in real time would hang here for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits: when the loop would wait, it calls `over` instead."""

    def __init__(self, over: Callable[[], None]) -> None:
        super().__init__()
        self._over = over

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Returns what is ready. If nothing is ready and the loop would wait, the current moment is over."""
        polls = QUIET_POLLS if timeout is None or timeout > 0 else 1
        for _ in range(polls):
            ready = super().select(0)
            if ready:
                return ready
        if polls > 1:
            self._over()
        return []


class _Timer(asyncio.TimerHandle):
    """A timer that fires after earlier timers of the same time; asyncio's own heap does not keep this order."""

    __slots__ = ("number",)
    number: int

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Timer):
            return NotImplemented
        return (self.when(), self.number) < (other.when(), other.number)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while there is work, then jumps to the next timer.

    Both ends of every connection have to be on this loop: the work of another process or thread takes no virtual time and would finish at
    a random moment. For the same reason work for an executor (`asyncio.to_thread`, name look-ups) is done at once, in this thread. Under
    these conditions a program runs the same way every time.

    Args:
        start_s: Time at the start. Small values keep more digits of a float: 1000 s resolves 1e-13 s, today's epoch 2e-7 s.
    """

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s
        self._moments: list[asyncio.Future[None]] = []
        self._timers = 0
        super().__init__(_JumpingSelector(self._over))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def now_s(self) -> float:
        """Virtual seconds: the loop is a `hmas.controller.runtime.clock.Clock`."""
        return self._now_s

    def call_at(
        self, when: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio; timers for the same time fire in the order in which they were set."""
        self._timers += 1
        timer = _Timer(when, callback, args, self, context)
        timer.number = self._timers
        # The same as `call_at` of the base class, except for the class of the timer.
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]  # asyncio keeps its heap out of the type stubs
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - the mark that the base reads, and out of the stubs too
        return timer

    async def settled(self) -> None:
        """Returns when everything that can happen at this moment has happened, before time advances.

        All waiters continue together, in the order of their calls; their further work belongs to the same moment.
        """
        moment: asyncio.Future[None] = self.create_future()
        self._moments.append(moment)
        await moment

    def run_in_executor(
        self,
        executor: Executor | None,  # noqa: ARG002 - there is no other thread
        func: Callable[[*Args], T],
        *args: *Args,
    ) -> asyncio.Future[T]:
        """Does the work at once."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is passed to the awaiter of the future
            future.set_exception(error)
        return future

    def _over(self) -> None:
        """Ends the moment: wakes the waiters of `settled`, or if there are none, advances to the next timer."""
        moments, self._moments = self._moments, []
        if moments:
            for moment in moments:
                if not moment.done():
                    moment.set_result(None)
            return
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]  # as above
        if not timers:
            raise Deadlock("nothing is ready and no timer is set")
        self._now_s = max(self._now_s, timers[0].when())


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, start_s: float = 1000.0) -> T:
    """Runs a coroutine on a new virtual loop and returns its result.

    Raises:
        Deadlock: The coroutine waits for something that can no longer happen.
    """
    loop = VirtualLoop(start_s)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))
