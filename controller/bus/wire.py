"""Entries on their way to one Redis server: XADD commands packed by hand, their replies counted as they come.

The client library takes some 50 microseconds of CPU for every command, several times that where a command goes alone. It still makes the
connection, with whatever the address says of users, databases and TLS; this takes its transport over.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from hmas.controller.bus.link import FIELD

MAX_REPLY_BYTES = 65_536


def xadd_head(key: str, bound: int) -> bytes:
    """What stands before the payload in the command that appends it to the stream `key` of about `bound` entries."""
    words = (b"XADD", key.encode(), b"MAXLEN", b"~", b"%d" % bound, b"*", FIELD)
    return b"*%d\r\n" % (len(words) + 1) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def xadd(head: bytes, payload: bytes) -> bytes:
    """The whole command."""
    return head + b"$%d\r\n%b\r\n" % (len(payload), payload)


class Wire(asyncio.Protocol):
    """A connection that carries nothing but such commands.

    Attributes:
        gone: Done once the connection is; its result is the reason.
        paused: Whether the server does not keep up.
    """

    def __init__(self, connection: Any, answered: Callable[[Sequence[object]], None], writable: Callable[[], None]) -> None:
        """Takes a connection over.

        Args:
            connection: One of redis.asyncio that stands and awaits no reply.
            answered: Told replies in their order; what the server refuses is a `hiredis.ReplyError`.
            writable: Told when the server keeps up again.
        """
        # The library keeps its stream to itself; there is no other way to what it has connected.
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
        """Replies, or parts of them."""
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
        """The server closes."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        if not self.gone.done():
            self.gone.set_result(str(error or "the server closed the connection"))
        self._before.connection_lost(error)

    def pause_writing(self) -> None:
        """The server does not keep up."""
        self.paused = True

    def resume_writing(self) -> None:
        """It keeps up again."""
        self.paused = False
        self._writable()
