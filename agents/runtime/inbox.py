"""Collects the messages that arrive while the agent works on a batch."""

import asyncio
from collections import deque
from collections.abc import Sequence

from hmas.controller.bus.base import Delivery

LIMIT = 100
"""Most messages an inbox holds; above it, reading pauses. Unread entries stay in the stream, where another instance can take them."""


class Inbox:
    """Collects deliveries in order and drops duplicates of those it holds: after a reconnect a reader gets its unfinished entries again."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: deque[Delivery] = deque()
        self._held: set[tuple[str, str]] = set()
        self._came = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._waiting)

    async def put(self, deliveries: Sequence[Delivery]) -> None:
        """Adds deliveries. It first waits until there is room, so the inbox exceeds its limit by one batch at most."""
        await self._room.wait()
        for delivery in deliveries:
            key = delivery.stream, delivery.entry_id
            if key not in self._held:
                self._held.add(key)
                self._waiting.append(delivery)
        if len(self._waiting) >= self._limit:
            self._room.clear()
        if self._waiting:
            self._came.set()

    async def gathered(self, count: int, wait_s: float) -> list[Delivery]:
        """Returns up to `count` deliveries, oldest first; [] if none arrives within `wait_s`."""
        if not self._waiting:
            self._came.clear()
            try:
                # Not `wait_for`: before Python 3.12 it swallows a cancellation that arrives together with the event.
                async with asyncio.timeout(wait_s):
                    await self._came.wait()
            except TimeoutError:
                return []
        batch = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        if len(self._waiting) < self._limit:
            self._room.set()
        return batch

    def done(self, deliveries: Sequence[Delivery]) -> None:
        """Forgets deliveries that the agent has finished."""
        self._held.difference_update((delivery.stream, delivery.entry_id) for delivery in deliveries)

    def wake(self) -> None:
        """Makes a waiting `gathered` return at once."""
        self._came.set()
