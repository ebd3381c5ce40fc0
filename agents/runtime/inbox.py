"""What has come in while a batch was being worked on."""

import asyncio
from collections import deque
from collections.abc import Sequence

from hmas.controller.bus.base import Delivery

LIMIT = 100
"""Messages gathered; beyond it reading waits. The stream itself is the queue: what one instance hoards, another cannot take."""


class Inbox:
    """Gathers deliveries in order, each once while it is held: a reader that lost its connection is given its unfinished entries again."""

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
        """Takes deliveries in, waiting first until there is room: the limit is passed by one batch at most."""
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
        """Up to `count` of what has come, oldest first; [] where nothing came in `wait_s`."""
        if not self._waiting:
            self._came.clear()
            try:
                # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together with the event.
                async with asyncio.timeout(wait_s):
                    await self._came.wait()
            except TimeoutError:
                return []
        batch = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        if len(self._waiting) < self._limit:
            self._room.set()
        return batch

    def done(self, deliveries: Sequence[Delivery]) -> None:
        """Forgets deliveries that are worked off."""
        self._held.difference_update((delivery.stream, delivery.entry_id) for delivery in deliveries)

    def wake(self) -> None:
        """Lets a waiting `gathered` return at once."""
        self._came.set()
