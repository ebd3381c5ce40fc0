"""The bus over a real Redis or Valkey server, 7.0 or newer (6.2 works too)."""

import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from hmas.controller.bus.base import BusHealth, Delivery
from hmas.controller.bus.codec import encode
from hmas.controller.bus.link import LOST, Link
from hmas.controller.bus.redis_reader import Follower, GroupReader, batches
from hmas.controller.bus.redis_sender import Sender
from hmas.controller.core.messages import STREAM_OF, Completion, Message, SystemSnapshot

FLUSH_S = 1.0
"""How long `close` waits for the buffer to empty."""
PATIENT = frozenset({Completion, SystemSnapshot})
"""Telemetry messages, which are not urgent on their own."""
_TAKE = """
local held = redis.call("GET", KEYS[1])
if held and held ~= ARGV[1] and held ~= ARGV[3] then return held end
redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
return ARGV[1]
"""
_RELEASE = """
if redis.call("GET", KEYS[1]) == ARGV[1] then redis.call("DEL", KEYS[1]) end
"""


class RedisBus:
    """Implements `hmas.controller.bus.base.Bus`.

    A sender collects messages for a short time and writes them together. Every reader has one connection; acknowledgements and `latest`
    share another one. The loss of the server raises no error: the buffer fills, readers yield [], `health` says why, and all reconnect
    with bounded backoff.
    """

    def __init__(self, url: str, key_prefix: str = "") -> None:
        """Does not connect yet.

        Args:
            url: `redis://host:port/db`, `rediss://...` or `unix:///path`.
            key_prefix: Prefix of every stream name, so that installations can share a server.

        Raises:
            BusError: The address is invalid.
        """
        self.silent = False
        self._link = Link(url, key_prefix)
        # An idle connection may have been cut since the last command; a retry distinguishes that from an unreachable server.
        self._commands = self._link.client(retries=1)
        self._sender = Sender(self._link)

    @property
    def health(self) -> BusHealth:
        """State of this end as of the last exchange."""
        return self._link.health

    async def start(self) -> None:
        """Starts the sender, which pings the server at once, so `health` soon shows whether the server is reachable."""
        if not self._link.closed:
            self._sender.start()

    def post(self, message: Message) -> None:
        """See `Bus.post`."""
        if self.silent:
            return
        if self._link.closed:
            self._link.drop(1)
            return
        kind = type(message)
        self._sender.post(STREAM_OF[kind], encode(message), patient=kind in PATIENT)

    def read(
        self, streams: Sequence[str], *, group: str, consumer: str, count: int = 100, block_ms: int = 1000
    ) -> AsyncGenerator[list[Delivery], None]:
        """See `Bus.read`."""
        reader = GroupReader(self._link, streams, group=group, consumer=consumer, count=count, block_ms=block_ms)
        return batches(self._link, reader, block_ms=block_ms)

    def follow(self, streams: Sequence[str], *, count: int = 100, block_ms: int = 1000) -> AsyncGenerator[list[Delivery], None]:
        """See `Bus.follow`."""
        return batches(self._link, Follower(self._link, streams, count=count, block_ms=block_ms), block_ms=block_ms)

    async def ack(self, deliveries: Sequence[Delivery], *, group: str) -> None:
        """See `Bus.ack`. If an acknowledgement does not arrive, the entries are delivered again."""
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

    async def take_lease(self, name: str, holder: str, expires_s: float, *, over: str = "") -> str:
        """See `Bus.take_lease`."""
        try:
            held: Any = await self._commands.eval(_TAKE, 1, self._link.key(name), holder, str(int(1000.0 * expires_s)), over)
        except LOST:
            return ""
        return str(held.decode())

    async def release_lease(self, name: str, holder: str) -> None:
        """See `Bus.release_lease`."""
        with contextlib.suppress(*LOST):
            await self._commands.eval(_RELEASE, 1, self._link.key(name), holder)

    async def close(self) -> None:
        """See `Bus.close`."""
        if self._link.closed:
            return
        await self._sender.close(FLUSH_S)
        await self._link.close()
