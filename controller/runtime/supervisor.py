"""Keeps child processes running: starts them, restarts crashed ones with backoff, stops them in order."""

import asyncio
import contextlib
import logging
import math
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from hmas.controller.runtime.child import Child, ChildSpec
from hmas.controller.runtime.clock import SystemClock

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""Shortest time between two looks at how long a child has been silent."""
START_MOST_S = 300.0
"""Longest silence of a child that has a watchdog and is not ready yet; it may load a large model."""
STOOD_STILL_S = 1.0
"""A look that comes later than planned by more than this shows that the supervisor itself could not run."""
ChildState = Literal["new", "starting", "ready", "waiting", "given-up", "stopped"]
EventKind = Literal["started", "ready", "crashed", "hung", "given-up", "killed", "stopped"]


@dataclass(frozen=True, slots=True)
class RestartRule:
    """Exponential backoff with a limit of crashes.

    After the n-th crash in a row the restart waits `first_s * 2^(n-1)`, at most `longest_s`. After a run of `steady_s` or more, the next
    crash counts as the first. After more than `burst` crashes within `window_s` the child is given up. Every `again_s` one that is given up
    is tried once more; if it then runs for `steady_s`, its crashes count as those of any other.
    """

    first_s: float = 0.2
    longest_s: float = 10.0
    steady_s: float = 20.0
    burst: int = 10
    window_s: float = 300.0
    again_s: float = 300.0


@dataclass(slots=True)
class RestartHistory:
    """The crashes of one child."""

    rule: RestartRule
    in_a_row: int = 0
    _given_up: bool = False
    _crashes: deque[float] = field(default_factory=deque)

    def crashed(self, started_s: float, now_s: float) -> float | None:
        """Records a crash; returns the seconds to wait before the next start, None to give up."""
        steady = now_s - started_s >= self.rule.steady_s
        self.in_a_row = 1 if steady else self.in_a_row + 1
        self._crashes.append(now_s)
        while self._crashes and now_s - self._crashes[0] > self.rule.window_s:
            self._crashes.popleft()
        self._given_up = len(self._crashes) > self.rule.burst or (self._given_up and not steady)
        if self._given_up:
            return None
        # The exponent is bounded to prevent an overflow after many crashes.
        return min(self.rule.longest_s, self.rule.first_s * 2.0 ** min(self.in_a_row - 1, 30))


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """An event of a child process.

    Attributes:
        detail: A text, such as how the child ended and when it is started again.
    """

    kind: EventKind
    child: str
    pid: int
    detail: str = ""


@dataclass(slots=True)
class _Kept:
    """The supervisor's state of one child."""

    spec: ChildSpec
    history: RestartHistory
    state: ChildState = "new"
    status: str = ""
    child: Child | None = None
    heard_s: float = 0.0
    task: asyncio.Task[None] | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Children by name. Use as `async with Supervisor(...) as keeper: code = await keeper.run(stop)`; leaving it stops every child.

    A child that ends without a stop by the supervisor has crashed and is restarted by `RestartRule`, unless its exit code asks for that.
    After a final exit code it is given up at once. A child that is given up is tried again after a long pause; if it is essential, `run`
    returns instead.
    """

    def __init__(
        self,
        specs: Iterable[ChildSpec] = (),
        *,
        on_event: Callable[[ChildEvent], None] | None = None,
        rule: RestartRule | None = None,
    ) -> None:
        """Does not start the children yet; `specs` has them in start order. `on_event` is called in the loop and must not block."""
        self._rule = rule or RestartRule()
        self._clock = SystemClock()
        self._on_event = on_event or _ignore
        self._kept: dict[str, _Kept] = {}
        self._stopping = asyncio.Event()
        self._lost = asyncio.Event()
        self._specs = list(specs)
        self._dir: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> Self:
        """Starts the children."""
        self._dir = tempfile.TemporaryDirectory(prefix="hmas-up-")
        try:
            for spec in self._specs:
                self.add(spec)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stops the children."""
        await self.stop()

    def add(self, spec: ChildSpec) -> None:
        """Starts one more child.

        Raises:
            OSError: Its program cannot be started.
            ValueError: A child of that name exists already.
        """
        if spec.name in self._kept:
            raise ValueError(f"child {spec.name!r} is there already")
        kept = _Kept(spec, RestartHistory(self._rule))
        # The first start happens here, so that the caller learns at once of a program that does not exist.
        self._start(kept)
        self._kept[spec.name] = kept
        kept.task = asyncio.create_task(self._keep(kept))

    def send(self, name: str, number: signal.Signals) -> bool:
        """Sends a signal to a child; False if it is not ready. One that still starts has no handler yet, and the signal would end it."""
        kept = self._kept.get(name)
        if kept is None or kept.child is None or kept.state != "ready":
            return False
        kept.child.signal(number)
        return True

    async def wait_ready(self, names: Iterable[str] | None = None, timeout_s: float = 60.0) -> list[str]:
        """Waits until the named children (all by default) are ready; returns those that are not ready in time or were given up."""
        wanted = [self._kept[name] for name in names] if names is not None else list(self._kept.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for kept in wanted:
                    await kept.ready.wait()
        return [kept.spec.name for kept in wanted if kept.state != "ready"]

    async def run(self, stop: asyncio.Event) -> int:
        """Waits until `stop` is set (returns 0) or an essential child is given up (returns 1). The other children still run then."""
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(self._lost.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return 1 if self._lost.is_set() and not stop.is_set() else 0

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Stops every child, stage by stage from the highest: SIGTERM, then SIGKILL after its grace (or at once when `hurry` is set)."""
        self._stopping.set()
        for stage in sorted({kept.spec.stage for kept in self._kept.values()}, reverse=True):
            await asyncio.gather(*(self._end(kept, hurry) for kept in self._kept.values() if kept.spec.stage == stage))
        if self._dir is not None:
            self._dir.cleanup()
            self._dir = None

    def states(self) -> Mapping[str, ChildState]:
        """State by name."""
        return {name: kept.state for name, kept in self._kept.items()}

    async def _keep(self, kept: _Kept) -> None:
        while not self._stopping.is_set():
            asks = final = False
            if kept.child is not None:
                started_s = self._clock.now_s()
                code = await self._until_end(kept, kept.child)
                if self._stopping.is_set():
                    return
                detail, asks, final = exit_words(code), code in kept.spec.again_codes, code in kept.spec.final_codes
            else:
                started_s, detail = self._clock.now_s(), kept.status
            delay_s = self._rule.first_s if asks else None if final else kept.history.crashed(started_s, self._clock.now_s())
            if delay_s is None:
                self._give_up(kept, f"{detail}; " + ("a restart at once would not help" if final else "it crashes too often"))
                if kept.spec.essential:
                    return
                delay_s = self._rule.again_s
            else:
                kept.state = "waiting"
                self._tell(kept, "stopped" if asks else "crashed", f"{detail}; starts again in {delay_s:.1f} s")
                kept.child = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            # Checked after a timeout too: the stop may have come in the same iteration of the loop.
            if self._stopping.is_set():
                return
            try:
                self._start(kept)
            except OSError as error:
                kept.status = f"cannot be started: {error}"

    async def _until_end(self, kept: _Kept, child: Child) -> int:
        """Waits for the child's exit code; kills a child that is silent for longer than its watchdog allows."""
        while True:
            ready, starting = kept.state == "ready", kept.state == "starting"
            limit_s = kept.spec.watchdog_s if ready else START_MOST_S if starting else math.inf
            left_s = None
            if kept.spec.watchdog_s:
                left_s = min(limit_s if ready else 1.0, max(LOOK_S, limit_s - (self._clock.now_s() - kept.heard_s)))
            # Not `wait_for`: the future belongs to the child and must outlive the wait.
            asked_s = self._clock.now_s()
            await asyncio.wait({child.ended}, timeout=left_s)
            late_s = self._clock.now_s() - asked_s - (left_s or 0.0)
            if left_s and late_s > STOOD_STILL_S:
                # The machine or this process stood still, which says nothing about the child.
                kept.heard_s += late_s
            if child.ended.done():
                return child.ended.result()
            silent_s = self._clock.now_s() - kept.heard_s
            if kept.spec.watchdog_s and silent_s > limit_s:
                self._tell(kept, "hung", f"silent for {silent_s:.1f} s, allowed {limit_s:g} s; killed")
                child.signal(signal.SIGKILL)
                kept.state = "waiting"

    def _start(self, kept: _Kept) -> None:
        assert self._dir is not None, "use the supervisor as a context manager"
        kept.ready.clear()
        kept.state, kept.status = "starting", ""
        kept.child = Child(kept.spec, Path(self._dir.name), lambda message: self._heard(kept, message))
        kept.heard_s = self._clock.now_s()
        self._tell(kept, "started")
        if not kept.spec.notifies:
            self._mark_ready(kept, "")

    def _heard(self, kept: _Kept, message: Mapping[str, str]) -> None:
        kept.heard_s = self._clock.now_s()
        kept.status = message.get("STATUS", kept.status)
        if message.get("READY") == "1" and kept.state == "starting":
            self._mark_ready(kept, kept.status)

    def _mark_ready(self, kept: _Kept, detail: str) -> None:
        kept.state = "ready"
        kept.ready.set()
        self._tell(kept, "ready", detail)

    def _give_up(self, kept: _Kept, detail: str) -> None:
        kept.state = "given-up"
        self._tell(kept, "given-up", detail if kept.spec.essential else f"{detail}; tried again in {self._rule.again_s:g} s")
        kept.child = None
        # Waiters are woken and learn from the state that the child was given up.
        kept.ready.set()
        if kept.spec.essential:
            self._lost.set()

    async def _end(self, kept: _Kept, hurry: asyncio.Event | None) -> None:
        child = kept.child
        if child is not None and not child.ended.done():
            child.signal(signal.SIGTERM)
            hurrying = asyncio.ensure_future((hurry or asyncio.Event()).wait())
            waits: tuple[asyncio.Future[Any], ...] = (child.ended, hurrying)
            await asyncio.wait(waits, timeout=kept.spec.grace_s, return_when=asyncio.FIRST_COMPLETED)
            hurrying.cancel()
            if not child.ended.done():
                self._tell(kept, "killed", f"did not end within {kept.spec.grace_s:g} s of SIGTERM")
                child.signal(signal.SIGKILL)
            self._tell(kept, "stopped", exit_words(await child.ended))
        if kept.task is not None:
            await kept.task
        kept.state, kept.child = "stopped", None

    def _tell(self, kept: _Kept, kind: EventKind, detail: str = "") -> None:
        try:
            self._on_event(ChildEvent(kind, kept.spec.name, kept.child.pid if kept.child else 0, detail))
        except Exception:
            log.exception("the listener for child events failed on %s of %s", kind, kept.spec.name)


def _ignore(event: ChildEvent) -> None:
    log.debug("%s: %s %s", event.child, event.kind, event.detail)


def exit_words(code: int) -> str:
    """An exit code as text: `ended with status 3`, `ended by SIGKILL`."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
