"""What the sender and the readers of one `RedisBus` share: the address, the clients, the health, and the shape of an entry."""

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from redis.asyncio import Redis as RedisClient
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from hmas.controller.bus.base import BusHealth, Delivery
from hmas.controller.bus.codec import decode
from hmas.controller.core.errors import BusError, MessageError
from hmas.controller.core.messages import Message

log = logging.getLogger(__name__)

FIELD = b"m"
"""The one field of every stream entry; its value is what `codec.encode` gives."""
ANSWER_TIMEOUT_S = 5.0
"""How long an answer may take beyond the time that a blocking read asked to wait."""
CONNECT_TIMEOUT_S = 2.0
LOST = (RedisError, OSError)
"""What a call raises when the server is away or does not answer as it should."""
NOT_YET = "not connected yet"
Entry = tuple[bytes, dict[bytes, bytes] | None]
"""Id and fields as the client library gives them; no fields where a pending entry has been trimmed away."""


@dataclass(slots=True)
class Backoff:
    """Delays between attempts to reach the server: doubling from `base_s` to `cap_s`, each drawn from its upper half (jitter)."""

    base_s: float = 0.05
    cap_s: float = 2.0
    failures: int = 0

    def next_s(self) -> float:
        """The next delay."""
        full_s = min(self.cap_s, self.base_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return full_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt worked."""
        self.failures = 0


@dataclass(slots=True)
class Link:
    """One process's end of the bus.

    Attributes:
        url: `redis://`, `rediss://` or `unix://` address.
        key_prefix: Put before every stream name on the server; callers never see it.
        closed: Set once the bus is closed; readers then end.
    """

    url: str
    key_prefix: str = ""
    health: BusHealth = field(default_factory=lambda: BusHealth(connected=False, detail=NOT_YET))
    closed: bool = False
    _clients: set[RedisClient] = field(default_factory=set)

    def client(self, *, block_s: float = 0.0, retries: int = 0) -> RedisClient:
        """A client of its own.

        Args:
            block_s: How long its blocking reads will wait; the socket timeout stands above it.
            retries: Repetitions of a command that met a broken connection, without delay. 0 leaves them to a caller that backs off.

        Raises:
            BusError: The address is none.
        """
        try:
            client: RedisClient = RedisClient.from_url(
                self.url,
                protocol=2,
                socket_timeout=block_s + ANSWER_TIMEOUT_S,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                retry=Retry(NoBackoff(), retries),
            )
        except ValueError as error:
            raise BusError(
                f"bus.url {self.shown!r} is no address of a Redis server: {error}; allowed: redis://, rediss://, unix://"
            ) from error
        self._clients.add(client)
        return client

    async def release(self, client: RedisClient) -> None:
        """Closes a client of this link."""
        self._clients.discard(client)
        await client.aclose()

    async def close(self) -> None:
        """Ends the link: every client is closed, and a reader that waits on one ends."""
        self.closed = True
        for client in list(self._clients):
            await self.release(client)

    def key(self, stream: str) -> str:
        """The stream's name on the server."""
        return self.key_prefix + stream

    @property
    def shown(self) -> str:
        """The address without user and password, for logs and errors."""
        return re.sub(r"//[^/@]*@", "//", self.url)

    def works(self) -> None:
        """An exchange with the server succeeded."""
        if not self.health.connected:
            log.info("bus connected: %s", self.shown)
            self.health = replace(self.health, connected=True, detail="")

    def lost(self, error: BaseException) -> None:
        """An exchange failed. Logged when the connection is lost, not for every attempt after that."""
        first = self.health.connected or self.health.detail == NOT_YET
        losses = self.health.losses + self.health.connected
        self.health = replace(self.health, connected=False, detail=f"{type(error).__name__}: {error}", losses=losses)
        if first and not self.closed:
            log.warning("bus lost: %s: %s", self.shown, self.health.detail)

    def drop(self, count: int) -> None:
        """Messages were given up."""
        self.health = replace(self.health, dropped=self.health.dropped + count)

    def read_payload(self, stream: str, entry_id: str, payload: bytes) -> Message | None:
        """The message of an entry; None, counted and logged, where it cannot be understood."""
        try:
            return decode(payload)
        except MessageError as error:
            self.health = replace(self.health, rejected=self.health.rejected + 1)
            log.warning("bus: rejected entry %s of %s: %s", entry_id, stream, error)
            return None

    def deliveries(self, stream: str, entries: Iterable[Entry]) -> tuple[list[Delivery], list[bytes]]:
        """Entries as deliveries, and the ids of those that carry nothing readable (trimmed away, or rejected)."""
        good: list[Delivery] = []
        bad: list[bytes] = []
        for entry_id, fields in entries:
            name = entry_id.decode()
            message = self.read_payload(stream, name, fields.get(FIELD, b"")) if fields else None
            if message is None:
                bad.append(entry_id)
            else:
                good.append(Delivery(stream=stream, entry_id=name, message=message))
        return good, bad

    async def away(self, delay_s: float, block_s: float) -> AsyncIterator[list[Delivery]]:
        """Waits out a delay in steps no longer than a block, with an empty batch after each."""
        while delay_s > 0 and not self.closed:
            await asyncio.sleep(min(delay_s, block_s))
            delay_s -= block_s
            yield []


def pairs(reply: Any) -> list[tuple[bytes, list[Entry]]]:
    """The reply of XREAD and XREADGROUP as (key, entries) pairs; nothing where the block ran out."""
    return [(key, entries) for key, entries in reply or []]
