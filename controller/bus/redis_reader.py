"""Readers of Redis streams: a consumer of a group, and a follower of all new entries.

Each reader has a connection of its own, because a blocking read occupies it. `step` does one exchange and returns a batch. After any
failure the reader starts over: it checks its groups (or its position) again.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from redis.asyncio import Redis as RedisClient
from redis.exceptions import ResponseError

from hmas.controller.bus.base import Delivery
from hmas.controller.bus.link import LOST, Backoff, Entry, Link, pairs

CLAIM_EVERY_S = 30.0
"""How often a consumer looks for entries that other consumers have abandoned."""
CLAIM_IDLE_MS = 60_000
"""An entry that is unacknowledged for this long counts as abandoned."""


class Reader(ABC):
    """Reads batches of several streams, one exchange at a time."""

    def __init__(self, link: Link, streams: Sequence[str], *, count: int, block_ms: int) -> None:
        self._link = link
        self._stream_of = {link.key(stream).encode(): stream for stream in streams}
        self._count = count
        self._block_ms = block_ms
        self._fresh = True

    def restart(self) -> None:
        """Discards assumptions about the server; the next step checks them again."""
        self._fresh = True

    @abstractmethod
    async def step(self, client: RedisClient) -> list[Delivery]:
        """Does one exchange; returns [] if the blocking time ran out."""


async def batches(link: Link, reader: Reader, *, block_ms: int) -> AsyncGenerator[list[Delivery], None]:
    """Steps a reader until the bus is closed, through any number of lost connections."""
    block_s = block_ms / 1000.0
    backoff = Backoff()
    client = link.client(block_s=block_s)
    try:
        while not link.closed:
            try:
                batch = await reader.step(client)
            except LOST as error:
                reader.restart()
                # A missing group or a deleted stream is repaired at once the first time; a lasting error is followed by a delay.
                at_once = isinstance(error, ResponseError) and backoff.failures == 0
                delay_s = backoff.next_s()
                if at_once:
                    continue
                link.lost(error)
                async for nothing in link.away(delay_s, block_s):
                    yield nothing
                continue
            backoff.reset()
            link.works()
            yield batch
    finally:
        await link.release(client)


class GroupReader(Reader):
    """A consumer of a group over several streams: reads its own pending entries, then abandoned ones at intervals, then new ones."""

    def __init__(self, link: Link, streams: Sequence[str], *, group: str, consumer: str, count: int, block_ms: int) -> None:
        super().__init__(link, streams, count=count, block_ms=block_ms)
        self._group = group
        self._consumer = consumer
        self._claimed_s = time.monotonic()
        self._pending: dict[bytes, bytes] = {}

    async def step(self, client: RedisClient) -> list[Delivery]:
        """One batch; the first one after a start checks the groups, and reads the consumer's own pending entries again."""
        if self._fresh:
            await self._create_groups(client)
            self._pending = dict.fromkeys(self._stream_of, b"0")
            self._fresh = False
        while self._pending:
            found = await self._read(client, self._pending, block_ms=None)
            self._pending = {key: entries[-1][0] for key, entries in found if entries}
            batch = await self._accept(client, found)
            if batch:
                return batch
        if time.monotonic() - self._claimed_s >= CLAIM_EVERY_S:
            self._claimed_s = time.monotonic()
            batch = await self.claim(client)
            if batch:
                return batch
        found = await self._read(client, dict.fromkeys(self._stream_of, b">"), block_ms=self._block_ms)
        return await self._accept(client, found)

    async def _create_groups(self, client: RedisClient) -> None:
        for key in self._stream_of:
            try:
                await client.xgroup_create(key, self._group, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    async def _read(self, client: RedisClient, ids: dict[bytes, bytes], *, block_ms: int | None) -> list[tuple[bytes, list[Entry]]]:
        streams: Any = ids
        return pairs(await client.xreadgroup(self._group, self._consumer, streams, count=self._count, block=block_ms))

    async def _accept(self, client: RedisClient, found: Sequence[tuple[bytes, list[Entry]]]) -> list[Delivery]:
        """Returns entries as deliveries; acknowledges unreadable entries, so that they are not delivered again."""
        batch: list[Delivery] = []
        for key, entries in found:
            good, bad = self._link.deliveries(self._stream_of[key], entries)
            batch += good
            if bad:
                await client.xack(key, self._group, *bad)
        return batch

    async def claim(self, client: RedisClient) -> list[Delivery]:
        """Entries that other consumers of the group have left unacknowledged for too long."""
        found: list[tuple[bytes, list[Entry]]] = []
        for key in self._stream_of:
            reply: Any = await client.xautoclaim(key, self._group, self._consumer, CLAIM_IDLE_MS, start_id="0-0", count=self._count)
            # Servers before 7.0 answer (cursor, entries); later ones add the ids of deleted entries.
            found.append((key, reply[1]))
        return await self._accept(client, found)


class Follower(Reader):
    """Reads all new entries of several streams, for a single reader."""

    def __init__(self, link: Link, streams: Sequence[str], *, count: int, block_ms: int) -> None:
        super().__init__(link, streams, count=count, block_ms=block_ms)
        self._last: dict[bytes, bytes] = {}

    async def step(self, client: RedisClient) -> list[Delivery]:
        """One batch; the first one after a start checks that its position still exists on the server."""
        if self._fresh:
            for key in self._stream_of:
                self._last[key] = await self._place(client, key)
            self._fresh = False
        ids: Any = dict(self._last)
        batch: list[Delivery] = []
        for key, entries in pairs(await client.xread(ids, count=self._count, block=self._block_ms)):
            good, _ = self._link.deliveries(self._stream_of[key], entries)
            batch += good
            self._last[key] = entries[-1][0]
        return batch

    async def _place(self, client: RedisClient, key: bytes) -> bytes:
        """The id to continue from: at first the newest id (not `$`, so that a reconnect loses nothing), later the last id read."""
        newest = await _newest_id(client, key)
        last = self._last.get(key)
        if last is None:
            return newest
        # A server that restarted empty makes ids from its own clock; a position ahead of it would wait for ever.
        return b"0-0" if _order(newest) < _order(last) else last


async def _newest_id(client: RedisClient, key: bytes) -> bytes:
    try:
        info = await client.xinfo_stream(key)
    except ResponseError as error:
        if "no such key" in str(error).lower():
            return b"0-0"
        raise
    return bytes(info["last-generated-id"])


def _order(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence or 0)
