"""The state that the sender and the readers of one `RedisBus` share: address, clients, health, and the format of an entry."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from redis.asyncio import Redis as RedisClient
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from hmas.controller.bus.address import without_secrets
from hmas.controller.bus.base import BusHealth, Delivery
from hmas.controller.bus.codec import decode
from hmas.controller.core.errors import BusError, MessageError
from hmas.controller.core.messages import Message

log = logging.getLogger(__name__)

FIELD = b"m"
"""The only field of a stream entry; its value is the result of `codec.encode`."""
ANSWER_TIMEOUT_S = 5.0
"""How long an answer may take beyond the waiting time of a blocking read."""
CONNECT_TIMEOUT_S = 2.0
LOST = (RedisError, OSError)
"""The errors that a call raises if the server is unreachable or answers incorrectly."""
NOT_YET = "not connected yet"
Entry = tuple[bytes, dict[bytes, bytes] | None]
"""Id and fields as the client library returns them; the fields are None if a pending entry has been trimmed."""


@dataclass(slots=True)
class Backoff:
    """Delays between attempts to reach the server: they double from `base_s` to `cap_s`; each is drawn from its upper half (jitter)."""

    base_s: float = 0.05
    cap_s: float = 2.0
    failures: int = 0

    def next_s(self) -> float:
        """The next delay."""
        full_s = min(self.cap_s, self.base_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return full_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Resets the delay after a successful attempt."""
        self.failures = 0


@dataclass(slots=True)
class Link:
    """One process's end of the bus.

    Attributes:
        url: `redis://`, `rediss://` or `unix://` address.
        key_prefix: Prefix of every stream name on the server; callers use names without it.
        closed: Set once the bus is closed; readers then end.
    """

    url: str
    key_prefix: str = ""
    health: BusHealth = field(default_factory=lambda: BusHealth(connected=False, detail=NOT_YET))
    closed: bool = False
    _clients: set[RedisClient] = field(default_factory=set)
    _refuses: bool = False

    def client(self, *, block_s: float = 0.0, retries: int = 0) -> RedisClient:
        """Makes a new client.

        Args:
            block_s: How long its blocking reads wait; the socket timeout is longer than this.
            retries: Immediate repetitions of a command after a broken connection. 0 leaves retries to a caller that backs off.

        Raises:
            BusError: The address is invalid.
        """
        try:
            client: RedisClient = RedisClient.from_url(
                self.url,
                protocol=2,
                socket_timeout=block_s + ANSWER_TIMEOUT_S,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                retry=Retry(NoBackoff(), retries),
            )
        except ValueError:
            # Its text is left out: it may quote a part of the password.
            raise BusError(f"bus.url {self.shown!r} is no address of a Redis server; allowed: redis://, rediss://, unix://") from None
        self._clients.add(client)
        return client

    async def release(self, client: RedisClient) -> None:
        """Closes a client of this link."""
        self._clients.discard(client)
        await client.aclose()

    async def close(self) -> None:
        """Closes the link and every client; readers that wait end."""
        self.closed = True
        for client in list(self._clients):
            await self.release(client)

    def key(self, stream: str) -> str:
        """The stream's name on the server."""
        return self.key_prefix + stream

    @property
    def shown(self) -> str:
        """The address without user and password, for logs and errors."""
        return without_secrets(self.url)

    def works(self, *, sent: bool = False) -> None:
        """Records that an exchange with the server succeeded. `sent`: the sender reports it, with its messages taken or none waiting.

        A server may answer readers and refuse messages (its memory or disk is full, or it is a replica): then it is not there.
        """
        if self._refuses and not sent:
            return
        self._refuses = False
        if not self.health.connected:
            log.info("bus connected: %s", self.shown)
            self.health = replace(self.health, connected=True, detail="")

    def lost(self, error: BaseException, *, sent: bool = False) -> None:
        """Records that an exchange failed. Logs only the loss of the connection, not every later attempt. `sent`: as in `works`."""
        self._refuses = self._refuses or sent
        first = self.health.connected or self.health.detail == NOT_YET
        losses = self.health.losses + self.health.connected
        self.health = replace(self.health, connected=False, detail=f"{type(error).__name__}: {error}", losses=losses)
        if first and not self.closed:
            log.warning("bus lost: %s: %s", self.shown, self.health.detail)

    def drop(self, count: int) -> None:
        """Counts messages that were dropped."""
        self.health = replace(self.health, dropped=self.health.dropped + count)

    def read_payload(self, stream: str, entry_id: str, payload: bytes) -> Message | None:
        """Decodes the message of an entry; returns None, counts and logs if that fails."""
        try:
            return decode(payload)
        except MessageError as error:
            self.health = replace(self.health, rejected=self.health.rejected + 1)
            log.warning("bus: rejected entry %s of %s: %s", entry_id, stream, error)
            return None

    def deliveries(self, stream: str, entries: Iterable[Entry]) -> tuple[list[Delivery], list[bytes]]:
        """Returns entries as deliveries, and the ids of entries without a readable message (trimmed or rejected)."""
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
        """Waits for a delay in steps of at most `block_s`, and yields an empty batch after each."""
        while delay_s > 0 and not self.closed:
            await asyncio.sleep(min(delay_s, block_s))
            delay_s -= block_s
            yield []


def pairs(reply: Any) -> list[tuple[bytes, list[Entry]]]:
    """The reply of XREAD and XREADGROUP as (key, entries) pairs; empty if the blocking time ran out."""
    return [(key, entries) for key, entries in reply or []]
