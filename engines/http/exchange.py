"""One request to an engine and its answer, from the caller's side."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from hmas.engines.errors import AnswerBroken, ConnectionBroken

if TYPE_CHECKING:
    from hmas.engines.http.connection import Connection

MAX_HELD_BYTES = 1 << 18
"""Bytes of a body that are buffered while no reader takes them; above this, reading from the engine stops."""

Take = Callable[[bytes], bool]
"""Takes bytes of a body. If it returns False, reading from the engine stops until `Exchange.resume`."""


class Exchange:
    """The part of an answer received so far. Once its head has arrived, it is the `hmas.engines.base.EngineResponse`.

    The connection reports by calling `arrived`, `took`, `ended` and `broke`.

    Attributes:
        status: 0 until the head has arrived.
        headers: By lower-case name; if a field came twice, its first value.
        complete: Whether the whole body has been read from the connection.
        error: Why the rest of the answer will not come, None while it may.
        take: The function that takes the body, None while the body is buffered.
    """

    __slots__ = ("_held", "_held_bytes", "_read_s", "_sent_s", "_source", "_waiter", "complete", "error", "headers", "status", "take")

    def __init__(self, source: "Connection") -> None:
        self._source: Connection | None = source
        self._waiter: asyncio.Future[None] | None = None
        self.take: Take | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._sent_s = self._read_s = monotonic()
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.complete = False
        self.error: Exception | None = None

    async def head(self) -> None:
        """Returns when the answer's head has arrived.

        Raises:
            ConnectionBroken: The connection ended before the head.
        """
        while not self.status:
            if self.error is not None:
                raise self.error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def relay(self, take: Take) -> None:
        """See `hmas.engines.base.EngineResponse.relay`.

        Raises:
            AnswerBroken: The connection ended before the body did.
            Exception: Any error that `take` raises; the connection is dropped.
        """
        held, self._held = self._held, []
        keeps_up = True
        for data in held:
            keeps_up = take(data) and keeps_up
        self.take = take
        source = self._source
        if source is not None:
            if keeps_up:
                source.resume()
            else:
                source.pause()
        while not self.complete:
            if self.error is not None:
                raise self.error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def chunks(self) -> AsyncIterator[bytes]:
        """See `hmas.engines.base.EngineResponse.chunks`. Raises as `read` does."""
        return _Chunks(self)

    async def read(self) -> bytes:
        """Returns the next bytes of the body; empty at its end.

        Raises:
            AnswerBroken: The connection ended before the body did.
        """
        source = self._source
        if source is not None and not self._held:
            source.awaited = True
            source.resume()
        while not self._held:
            if self.error is not None:
                raise self.error
            if self.complete:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if source is not None:
            source.awaited = False
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held, self._held_bytes = [], 0
        return data

    def begun(self) -> None:
        """See `hmas.engines.base.EngineResponse.begun`."""
        if self._source is not None:
            self._source.awaited = True

    def resume(self) -> None:
        """Continues reading once `take` can accept more."""
        if self._source is not None:
            self._source.resume()

    def drop(self) -> None:
        """Releases the connection. Before the body's end this closes it, so that the engine sees that its client disconnected."""
        source, self._source = self._source, None
        self.take = None
        if source is not None:
            source.drop()

    def took_s(self) -> float:
        """See `hmas.engines.base.EngineResponse.took_s`."""
        # Bytes go to `take` in the moment in which they are read.
        return (self._read_s if self.take is None or self.complete else monotonic()) - self._sent_s

    async def close(self) -> None:
        """See `hmas.engines.base.EngineResponse.close`."""
        self.drop()

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        """The head has been read."""
        self._read_s = monotonic()
        self.status = status
        self.headers = headers
        self._wake()

    def took(self, data: bytes) -> None:
        """Bytes of the body have been read, and no `take` is set yet."""
        self._read_s = monotonic()
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_HELD_BYTES and self._source is not None:
            self._source.pause()
        self._wake()

    def ended(self) -> None:
        """The body has been read to its end, and the connection no longer belongs to this exchange."""
        self._read_s = monotonic()
        self.complete = True
        self._source = None
        self._wake()

    def broke(self, error: Exception) -> None:
        """The connection ended before the answer did."""
        if isinstance(error, ConnectionBroken) and self.status:
            error = AnswerBroken(f"the engine broke off in the middle of its answer: {error}")
        self.error = error
        self._source = None
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class _Chunks:
    """Iterates over a body piece by piece. It is a class because mypyc compiles no asynchronous generators."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> "_Chunks":
        return self

    async def __anext__(self) -> bytes:
        data = await self._exchange.read()
        if not data:
            raise StopAsyncIteration
        return data
