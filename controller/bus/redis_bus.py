"""The bus over a real Redis or Valkey server, 7.0 or newer (6.2 works too)."""

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.asyncio import Redis as RedisClient
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from controller.bus.base import BusHealth, Delivery
from controller.bus.codec import encode
from controller.bus.link import FIELD, LOST, Backoff, Link
from controller.bus.redis_reader import Follower, GroupReader, batches
from controller.core.messages import MAXLEN, STREAM_OF, Message

log = logging.getLogger(__name__)

BUFFER = 20_000
"""Messages held while the server is away; beyond it the oldest are dropped and counted."""
SEND_BATCH = 256
FLUSH_S = 1.0
"""How long `close` waits for the buffer to empty."""
_RETRIED = (RedisConnectionError, ReadOnlyError, OutOfMemoryError)


class RedisBus:
    """Implements `controller.bus.base.Bus`.

    A sender task empties a bounded buffer with pipelined XADD; every reader holds one connection; acknowledgements and `latest` share one
    more. Losing the server raises nowhere: the buffer fills, readers yield [], `health` says why, and all reconnect with bounded backoff.
    """

    def __init__(self, url: str, key_prefix: str = "") -> None:
        """Connects nothing yet.

        Args:
            url: `redis://host:port/db`, `rediss://...` or `unix:///path`.
            key_prefix: Put before every stream name, so that installations can share a server.

        Raises:
            BusError: The address is none.
        """
        self._link = Link(url, key_prefix)
        # An idle connection may have been cut since the last command: one more try tells that from a server that is away.
        self._commands = self._link.client(retries=1)
        self._buffer: deque[tuple[str, bytes]] = deque()
        self._in_flight = 0
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None

    @property
    def health(self) -> BusHealth:
        """State of this end as of the last exchange."""
        return self._link.health

    async def start(self) -> None:
        """Starts the sender; it greets the server at once, so `health` tells soon whether it is there."""
        if self._sender is None and not self._link.closed:
            self._sender = asyncio.create_task(self._send_until_closed(), name="bus-sender")
            self._sender.add_done_callback(self._sender_ended)

    def post(self, message: Message) -> None:
        """See `Bus.post`."""
        if self._link.closed:
            self._link.drop(1)
            return
        self._buffer.append((STREAM_OF[type(message)], encode(message)))
        if len(self._buffer) > BUFFER:
            self._buffer.popleft()
            self._link.drop(1)
        self._wake.set()

    def read(
        self, streams: Sequence[str], *, group: str, consumer: str, count: int = 100, block_ms: int = 1000
    ) -> AsyncIterator[list[Delivery]]:
        """See `Bus.read`."""
        reader = GroupReader(self._link, streams, group=group, consumer=consumer, count=count, block_ms=block_ms)
        return batches(self._link, reader, block_ms=block_ms)

    def follow(self, streams: Sequence[str], *, count: int = 100, block_ms: int = 1000) -> AsyncIterator[list[Delivery]]:
        """See `Bus.follow`."""
        return batches(self._link, Follower(self._link, streams, count=count, block_ms=block_ms), block_ms=block_ms)

    async def ack(self, deliveries: Sequence[Delivery], *, group: str) -> None:
        """See `Bus.ack`. An acknowledgement that does not arrive brings the entries again; that is all."""
        if not deliveries:
            return
        ids: defaultdict[str, list[str]] = defaultdict(list)
        for delivery in deliveries:
            ids[delivery.stream].append(delivery.entry_id)
        try:
            async with self._commands.pipeline(transaction=False) as pipe:
                for stream, entry_ids in ids.items():
                    pipe.xack(self._link.key(stream), group, *entry_ids)
                await pipe.execute()
        except LOST as error:
            self._link.lost(error)

    async def latest(self, stream: str, count: int = 1) -> list[Message]:
        """See `Bus.latest`."""
        try:
            entries: Any = await self._commands.xrevrange(self._link.key(stream), count=count)
        except LOST as error:
            self._link.lost(error)
            return []
        self._link.works()
        good, _ = self._link.deliveries(stream, reversed(entries))
        return [delivery.message for delivery in good]

    async def close(self) -> None:
        """See `Bus.close`."""
        if self._link.closed:
            return
        if self._sender is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained(), FLUSH_S)
        self._link.closed = True
        while self._sender is not None and not self._sender.done():
            # The client library swallows a cancellation that meets it while connecting, so once may not be enough.
            self._sender.cancel()
            await asyncio.wait({self._sender}, timeout=0.1)
        self._link.drop(len(self._buffer) + self._in_flight)
        await self._link.close()

    async def _drained(self) -> None:
        while self._buffer or self._in_flight:
            self._sent.clear()
            await self._sent.wait()

    async def _send_until_closed(self) -> None:
        client = self._link.client()
        backoff = Backoff()
        batch: list[tuple[str, bytes]] = []
        greeted = False
        try:
            while not self._link.closed:
                if greeted and not batch:
                    batch = await self._next_batch()
                try:
                    if batch:
                        await self._send(client, batch)
                    else:
                        await client.ping()
                except LOST as error:
                    self._link.lost(error)
                    await asyncio.sleep(backoff.next_s())
                    continue
                greeted = True
                batch = []
                self._in_flight = 0
                self._sent.set()
                backoff.reset()
                self._link.works()
        finally:
            await self._link.release(client)

    def _sender_ended(self, sender: asyncio.Task[None]) -> None:
        """A sender that ends by anything but `close` is a fault: it must be seen, not found later by a silent bus."""
        error = None if sender.cancelled() else sender.exception()
        if error is not None:
            self._link.lost(error)
            log.error("bus: the sender has died", exc_info=error)

    async def _next_batch(self) -> list[tuple[str, bytes]]:
        while not self._buffer:
            self._wake.clear()
            await self._wake.wait()
        batch = [self._buffer.popleft() for _ in range(min(SEND_BATCH, len(self._buffer)))]
        self._in_flight = len(batch)
        return batch

    async def _send(self, client: RedisClient, batch: list[tuple[str, bytes]]) -> None:
        async with client.pipeline(transaction=False) as pipe:
            for stream, payload in batch:
                pipe.xadd(self._link.key(stream), {FIELD: payload}, maxlen=MAXLEN[stream], approximate=True)
            results = await pipe.execute(raise_on_error=False)
        for (stream, _), result in zip(batch, results, strict=True):
            if isinstance(result, _RETRIED):
                raise result
            if isinstance(result, ResponseError):
                self._link.drop(1)
                log.error("bus: the server refuses an entry for %s: %s", stream, result)
