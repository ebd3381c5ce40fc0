"""The bus inside one process, for parity runs and for tests, also in virtual time.

It behaves like `RedisBus`: streams bounded by MAXLEN, groups that begin with the oldest entry, at-least-once delivery with a pending list
per group, and followers. It uses the event loop's time, so it also works on a virtual loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from hmas.controller.bus.base import BusHealth, Delivery
from hmas.controller.bus.codec import encode
from hmas.controller.core.messages import MAXLEN, STREAM_OF, Message

CLAIM_IDLE_S = 60.0
"""An entry that its consumer does not acknowledge within this time goes to the next consumer that reads."""


@dataclass(slots=True)
class _Pending:
    entry: tuple[int, Message]
    consumer: str
    since_s: float


@dataclass(slots=True)
class _Group:
    last: int = 0
    pending: dict[int, _Pending] = field(default_factory=dict)


@dataclass(slots=True)
class _Stream:
    entries: deque[tuple[int, Message]]
    last: int = 0
    groups: dict[str, _Group] = field(default_factory=dict)

    def after(self, number: int, count: int) -> list[tuple[int, Message]]:
        """Up to `count` entries newer than `number`, oldest first."""
        if number >= self.last:
            return []
        skip = max(0, number + 1 - self.entries[0][0])
        return [self.entries[index] for index in range(skip, min(skip + count, len(self.entries)))]


class MemoryBus:
    """Implements `hmas.controller.bus.base.Bus` without a server. One object serves all parts of the process.

    Attributes:
        streams: The entries and groups of each stream, by its name.
        silent: See `Bus`.
        leases: The holder of each lease and the event loop's time, in seconds, at which it expires; by the lease's name.
    """

    def __init__(self) -> None:
        self.streams = {name: _Stream(deque(maxlen=length)) for name, length in MAXLEN.items()}
        self._posted = asyncio.Event()
        self.silent = False
        self.leases: dict[str, tuple[str, float]] = {}
        self._closed = False
        self._health = BusHealth(connected=True)

    @property
    def health(self) -> BusHealth:
        """The health: connected until closed."""
        return self._health

    async def start(self) -> None:
        """Does nothing."""

    def post(self, message: Message) -> None:
        """See `Bus.post`. The message is encoded, so that a message that fails on the real bus fails here too."""
        encode(message)
        if self.silent:
            return
        if self._closed:
            self._health = replace(self._health, dropped=self._health.dropped + 1)
            return
        stream = self.streams[STREAM_OF[type(message)]]
        stream.last += 1
        stream.entries.append((stream.last, message))
        self._wake()

    async def read(
        self, streams: Sequence[str], *, group: str, consumer: str, count: int = 100, block_ms: int = 1000
    ) -> AsyncGenerator[list[Delivery], None]:
        """See `Bus.read`."""
        for stream in streams:
            self.streams[stream].groups.setdefault(group, _Group())
        for stream in streams:
            pending = self._pending(stream, group)
            own = [item.entry for item in pending.values() if item.consumer == consumer]
            for start in range(0, len(own), count):
                yield _deliveries(stream, own[start : start + count])
        while not self._closed:
            batch: list[Delivery] = []
            for stream in streams:
                batch += self._take(stream, group, consumer, count)
            if not batch and await self._wait(block_ms / 1000.0):
                continue
            yield batch

    async def follow(self, streams: Sequence[str], *, count: int = 100, block_ms: int = 1000) -> AsyncGenerator[list[Delivery], None]:
        """See `Bus.follow`."""
        last = {stream: self.streams[stream].last for stream in streams}
        while not self._closed:
            batch: list[Delivery] = []
            for stream in streams:
                found = self.streams[stream].after(last[stream], count)
                last[stream] = found[-1][0] if found else last[stream]
                batch += _deliveries(stream, found)
            if not batch and await self._wait(block_ms / 1000.0):
                continue
            yield batch

    async def ack(self, deliveries: Sequence[Delivery], *, group: str) -> None:
        """See `Bus.ack`."""
        for delivery in deliveries:
            known = self.streams[delivery.stream].groups.get(group)
            if known is not None:
                known.pending.pop(int(delivery.entry_id), None)

    async def latest(self, stream: str, count: int = 1) -> list[Message]:
        """See `Bus.latest`."""
        entries = self.streams[stream].entries
        return [entries[index][1] for index in range(max(0, len(entries) - count), len(entries))]

    async def take_lease(self, name: str, holder: str, expires_s: float, *, over: str = "") -> str:
        """See `Bus.take_lease`."""
        now_s = asyncio.get_running_loop().time()
        held, until_s = self.leases.get(name, ("", 0.0))
        if held not in {"", holder, over} and until_s > now_s:
            return held
        self.leases[name] = (holder, now_s + expires_s)
        return holder

    async def release_lease(self, name: str, holder: str) -> None:
        """See `Bus.release_lease`."""
        if self.leases.get(name, ("", 0.0))[0] == holder:
            del self.leases[name]

    async def close(self) -> None:
        """See `Bus.close`. Every reader ends."""
        self._closed = True
        self._health = replace(self._health, connected=False, detail="closed", losses=self._health.losses + 1)
        self._wake()

    def _take(self, stream: str, group: str, consumer: str, count: int) -> list[Delivery]:
        """Takes entries that other consumers left unacknowledged, then new ones, and adds them to the group's pending list."""
        state = self.streams[stream].groups[group]
        pending = self._pending(stream, group)
        now_s = asyncio.get_running_loop().time()
        found = [item.entry for item in pending.values() if now_s - item.since_s >= CLAIM_IDLE_S][:count]
        new = self.streams[stream].after(state.last, count - len(found))
        if new:
            state.last = new[-1][0]
        for entry in found + new:
            pending[entry[0]] = _Pending(entry, consumer, now_s)
        return _deliveries(stream, found + new)

    def _pending(self, stream: str, group: str) -> dict[int, _Pending]:
        """The group's pending list without entries that the stream has trimmed: these are lost, as on a server."""
        state = self.streams[stream]
        pending = state.groups[group].pending
        oldest = state.entries[0][0] if state.entries else 0
        for number in [number for number in pending if number < oldest]:
            del pending[number]
        return pending

    def _wake(self) -> None:
        """Wakes all current waiters; later ones wait on a new event."""
        self._posted.set()
        self._posted = asyncio.Event()

    async def _wait(self, seconds: float) -> bool:
        """Returns True if a message was posted (or the bus closed) in time."""
        try:
            # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with the event.
            async with asyncio.timeout(seconds):
                await self._posted.wait()
        except TimeoutError:
            return False
        return True


def _deliveries(stream: str, entries: Sequence[tuple[int, Message]]) -> list[Delivery]:
    return [Delivery(stream=stream, entry_id=str(number), message=message) for number, message in entries]
