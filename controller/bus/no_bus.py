"""The bus of a gateway without agents and without a server: nobody reads what it posts, and nobody else posts."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from hmas.controller.bus.base import BusHealth, Delivery
from hmas.controller.core.messages import Message


class NoBus:
    """Implements `hmas.controller.bus.base.Bus` without a server. Messages are discarded as they are: nothing is encoded or kept.

    Attributes:
        silent: See `Bus`.
        health: Always connected: there is nothing to lose, and nothing that an operator could bring back.
    """

    def __init__(self) -> None:
        self.silent = False
        self.health = BusHealth(connected=True)
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Does nothing."""

    def post(self, message: Message) -> None:
        """Discards the message."""

    def read(
        self, streams: Sequence[str], *, group: str, consumer: str, count: int = 100, block_ms: int = 1000
    ) -> AsyncGenerator[list[Delivery], None]:
        """See `Bus.read`."""
        return self.follow(streams, count=count, block_ms=block_ms)

    async def follow(self, streams: Sequence[str], *, count: int = 100, block_ms: int = 1000) -> AsyncGenerator[list[Delivery], None]:
        """See `Bus.follow`."""
        while not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(block_ms / 1000.0):
                    await self._closed.wait()
                return
            yield []

    async def ack(self, deliveries: Sequence[Delivery], *, group: str) -> None:
        """Does nothing."""

    async def latest(self, stream: str, count: int = 1) -> list[Message]:
        """Returns []."""
        return []

    async def take_lease(self, name: str, holder: str, expires_s: float, *, over: str = "") -> str:
        """Returns `holder`: no other process could have the lease."""
        return holder

    async def release_lease(self, name: str, holder: str) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Ends every reader."""
        self._closed.set()
