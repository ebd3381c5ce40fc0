"""One request of a client and its answer. Implements both protocols of `hmas.controller.gateway.http.transport`."""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.http.answer import CONTINUE, LAST_CHUNK, answer_head
from hmas.controller.gateway.http.body import BodyReader
from hmas.controller.gateway.http.head import RequestHead

if TYPE_CHECKING:
    from hmas.controller.gateway.http.connection import ClientConnection
    from hmas.controller.gateway.http.server_state import ServerState

NO_BODY = frozenset({204, 304})


class ClientExchange:
    """One request and its answer; see the module.

    Attributes:
        method, path, query, headers: As in `transport.HttpRequest`.
        reader: The reader of the request's body.
        task: The task that serves it.
        started, ended: Whether the answer has started and ended.
    """

    __slots__ = (
        "_begun_s",
        "_carrier",
        "_chunked",
        "_drained",
        "_expects",
        "_fault",
        "_head",
        "_minor",
        "_received_s",
        "_resume",
        "_server",
        "_waiter",
        "ended",
        "headers",
        "method",
        "path",
        "query",
        "reader",
        "started",
        "task",
    )

    def __init__(self, head: RequestHead, reader: BodyReader, carrier: "ClientConnection", server: "ServerState") -> None:
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers: Mapping[str, str] = head.headers
        self.reader = reader
        self.task: asyncio.Task[None] | None = None
        self.started = self.ended = False
        # Moved on by the time for which the body is waited for.
        self._begun_s = head.arrived_s
        self._received_s = 0.0
        self._minor = head.minor
        self._carrier = carrier
        self._server = server
        self._head = b""
        self._chunked = False
        self._resume: Callable[[], None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._fault: ApiError | None = None
        expect = head.headers.get("expect")
        self._expects = expect is not None and head.minor == 1
        if expect is not None and expect.lower() != "100-continue":
            self._fault = ApiError(417, "expectation_failed", f"expect is {expect[:40]!r}; understood: 100-continue")

    # -- the request ----------------------------------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """See `transport.HttpRequest.body`."""
        reader = self.reader
        if not reader.settled and self._fault is None:
            await self._arrival(reader)
        return self._arrived_whole(reader)

    def _arrived_whole(self, reader: BodyReader) -> bytes:
        # A separate function, because mypy (and so mypyc) assumes that a check made before an await still holds after it.
        if self._fault is not None:
            raise self._fault
        if reader.too_large:
            limit = reader.limit
            raise ApiError(413, "request_too_large", f"the request body is larger than {limit} bytes, the configured limit")
        if reader.no_room:
            text = f"the gateway holds {reader.memory.held} bytes of request bodies already, which leaves no room for this one"
            raise ApiError(503, "too_many_body_bytes", text, retry_after_s=1)
        return reader.whole()

    async def _arrival(self, reader: BodyReader) -> None:
        transport = self._carrier.transport
        if self._expects and not reader.begun and transport is not None:
            # Without this, curl waits a second before it sends a large body.
            transport.write(CONTINUE)
        self._carrier.awaits_body()
        self._waiter = asyncio.get_running_loop().create_future()
        asked_s = monotonic()
        await self._waiter
        self._begun_s += max(0.0, self._received_s - asked_s)

    def arrived(self, fault: ApiError | None = None) -> None:
        """Notes that the body has arrived, or will not arrive because of `fault`."""
        self._fault = self._fault or fault
        self._received_s = monotonic()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the answer ---------------------------------------------------------------------------------------------------------

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """See `transport.Responder.start`."""
        self.started = True
        self._chunked = self._minor == 1
        if not self._chunked:
            self._carrier.ending = True
        self._head = answer_head(
            status, headers, self._framing("transfer-encoding: chunked\r\n" if self._chunked else ""), self._server.common_headers
        )

    def write(self, data: bytes) -> bool:
        """See `transport.Responder.write`."""
        carrier = self._carrier
        transport = carrier.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        transport.write(self._framed(data) if self._head or not self._chunked else b"%x\r\n%b\r\n" % (len(data), data))
        return not carrier.writing_paused

    def when_drained(self, resume: Callable[[], None]) -> None:
        """See `transport.Responder.when_drained`."""
        self._resume = resume

    async def drain(self) -> None:
        """See `transport.Responder.drain`."""
        if self._carrier.transport is None:
            raise ConnectionResetError("the client is gone")
        if self._carrier.writing_paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def finish(self, data: bytes = b"") -> None:
        """See `transport.Responder.finish`."""
        self.ended = True
        transport = self._carrier.transport
        if transport is None:
            return
        data = self._framed(data) + LAST_CHUNK if self._chunked else self._framed(data)
        if data:
            transport.write(data)

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """See `transport.Responder.send`."""
        transport = self._carrier.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        if self.started:
            # An answer has started: a second one would corrupt it, so the connection is broken instead.
            self.abandon()
            return
        self.started = self.ended = True
        head = answer_head(status, headers, self._framing(f"content-length: {len(body)}\r\n"), self._server.common_headers)
        transport.write(head if self.method == "HEAD" or status in NO_BODY else head + body)

    def abandon(self) -> None:
        """See `transport.Responder.abandon`."""
        transport = self._carrier.transport
        if transport is not None:
            transport.abort()

    def spent_s(self) -> float:
        """See `transport.Responder.spent_s`."""
        return monotonic() - self._begun_s

    # -- calls from the connection ------------------------------------------------------------------------------------------------

    def drained(self) -> None:
        """Notes that the client keeps up again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._resume is not None:
            self._resume()

    def left(self) -> None:
        """Cancels the task, because the client is gone. The bytes of the body no longer count; the task ends in its next step."""
        self.reader.release()
        if self.task is not None and not self.task.done():
            self.task.cancel()

    def release(self) -> None:
        """Drops the body and every reference that would keep this exchange alive in a cycle, once its handler has ended.

        The task keeps its last exception, an exception its stack, and the stack the exchange.
        """
        self.task = None
        self._fault = None
        self._resume = None
        self.reader.release()

    def _framed(self, data: bytes) -> bytes:
        """`data` as sent over the wire, preceded by the head if that has not been sent yet."""
        if data and self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        head, self._head = self._head, b""
        return head + data

    def _framing(self, length: str) -> str:
        # A body that has not arrived cannot be distinguished from the next request, so the connection has to end with this one. While the
        # server closes it ends, too, also if the request came before.
        if self._server.closing or not self.reader.complete:
            self._carrier.ending = True
        return length + "connection: close\r\n" if self._carrier.ending else length
