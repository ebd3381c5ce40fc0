"""The connection that sends entries to a Redis server: it encodes XADD commands, bounds the streams, and counts the replies.

The client library takes about 50 microseconds of CPU per command, and several times that for a single command. It still establishes the
connection, with the users, databases and TLS of the address; this module then takes over its transport.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from hmas.controller.bus.link import FIELD

MAX_REPLY_BYTES = 65_536
BYTES_MOST = 64 << 20
"""Approximate limit for all entries of one stream."""
ENTRIES_LEAST = 256
"""Entries that are kept regardless of their size."""
_EVERY = 64
_SHARE = 1.0 / 512.0
"""Weight of one entry in the mean size; small, because telemetry mixes small completions with snapshots that grow with the fleet."""
_NEAR = 0.1


def xadd_head(key: str, bound: int) -> bytes:
    """The part before the payload of the command that appends it to the stream `key`, which keeps about `bound` entries."""
    words = (b"XADD", key.encode(), b"MAXLEN", b"~", b"%d" % bound, b"*", FIELD)
    return b"*%d\r\n" % (len(words) + 1) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def xadd(head: bytes, payload: bytes) -> bytes:
    """The complete command."""
    return head + b"$%d\r\n%b\r\n" % (len(payload), payload)


class Bounded:
    """The append command of one stream, with a bound that depends on the size of its entries.

    A snapshot of a hundred instances is a hundred times as large as that of one instance. A fixed number of entries would take a few
    megabytes in one installation and more than the server's memory in another.
    """

    def __init__(self, key: str, most: int) -> None:
        """Starts with a bound of `most` entries."""
        self._key = key
        self._most = self.bound = most
        self._mean = 0.0
        self._count = 0
        self._head = xadd_head(key, most)

    def head(self, size: int) -> bytes:
        """The start of the command for a payload of `size` bytes. O(1)."""
        self._count += 1
        self._mean += (size - self._mean) * max(1.0 / self._count, _SHARE)
        if self._count % _EVERY == 0:
            bound = max(ENTRIES_LEAST, min(self._most, int(BYTES_MOST / max(1.0, self._mean))))
            if abs(bound - self.bound) > _NEAR * self.bound or bound == self._most != self.bound:
                self.bound = bound
                self._head = xadd_head(self._key, bound)
        return self._head


class Wire(asyncio.Protocol):
    """A connection that carries only XADD commands.

    Attributes:
        gone: Resolved when the connection has ended, with the reason.
        paused: Whether the server does not keep up.
    """

    def __init__(self, connection: Any, answered: Callable[[Sequence[object]], None], writable: Callable[[], None]) -> None:
        """Takes over a connection.

        Args:
            connection: An established connection of redis.asyncio that awaits no reply.
            answered: Called with replies in order; a refusal of the server is a `hiredis.ReplyError`.
            writable: Called when the server keeps up again.
        """
        # The library has no public access to the transport of its connection.
        transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001
        self._transport = transport
        self._before = cast("asyncio.Protocol", transport.get_protocol())
        self._answered = answered
        self._writable = writable
        self._reader = hiredis.Reader()
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.paused = False
        transport.set_protocol(self)

    def write(self, commands: bytes) -> None:
        """Sends whole commands."""
        self._transport.write(commands)

    def drop(self, reason: str) -> None:
        """Ends the connection."""
        if not self.gone.done():
            self.gone.set_result(reason)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parses replies, or parts of them."""
        reader = self._reader
        replies: list[object] = []
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                replies.append(reply)
        except hiredis.ProtocolError as error:
            self.drop(f"the server answered what is no reply: {error}")
            return
        if reader.len() > MAX_REPLY_BYTES:
            self.drop(f"the server's reply is larger than {MAX_REPLY_BYTES} bytes")
        elif replies and not self.gone.done():
            self._answered(replies)

    def eof_received(self) -> bool:
        """The server closes the connection."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        if not self.gone.done():
            self.gone.set_result(str(error or "the server closed the connection"))
        self._before.connection_lost(error)

    def pause_writing(self) -> None:
        """The server does not keep up."""
        self.paused = True

    def resume_writing(self) -> None:
        """The server keeps up again."""
        self.paused = False
        self._writable()
