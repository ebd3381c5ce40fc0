"""One connection of a client: reads requests one at a time, in order, and writes their answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from hmas.controller.gateway.errors import ApiError, HttpError
from hmas.controller.gateway.http.answer import CommonHeaders, answer_head
from hmas.controller.gateway.http.body import BodyReader
from hmas.controller.gateway.http.exchange import ClientExchange
from hmas.controller.gateway.http.head import HEAD_END, RequestHead
from hmas.controller.gateway.http.transport import HttpRequest, Responder

BODY_TIMEOUT_S = 60.0
HEAD_TIMEOUT_S = 30.0
KEEPALIVE_S = 75.0
LINGER_S = 2.0
"""How long a client that is still sending may continue, ignored, after an answer that ends the connection: closing at once would reset the
connection, and the client would lose the answer before reading it."""

MAX_HEAD_BYTES = 16_384
MAX_TURNED_AWAY = 256
"""Connections over the limit that still get a 503. Any further ones are closed without an answer."""

MAX_AHEAD_BYTES = 65_536
"""Bytes of later requests that are buffered while one is served; beyond it, reading from the client is paused."""

NEVER_S = float("inf")
CRLF = b"\r\n"
log = logging.getLogger(__name__)

Handler = Callable[[HttpRequest, Responder], Awaitable[None]]


class ServerState:
    """State shared by all connections of a server.

    Attributes:
        handler: Serves a request.
        max_body_bytes, max_connections: The configured limits.
        now_s: The loop's time at the last round of the server's watch, which is exact enough for time-outs.
        connections: All open connections.
        closing: Whether every answer ends its connection from now on.
    """

    def __init__(self, handler: Handler, *, max_body_bytes: int, max_connections: int) -> None:
        self.handler = handler
        self.max_body_bytes = max_body_bytes
        self.max_connections = max_connections
        self.now_s = 0.0
        self.common_headers = CommonHeaders()
        self.connections: set[ClientConnection] = set()
        self.closing = False


class ClientConnection(asyncio.Protocol):
    """One client connection; see the module.

    Attributes:
        transport: The transport, None before the connection is made and after it is lost.
        writing_paused: Whether the client reads too slowly.
        ending: Whether the connection ends with the current answer.
        due_s: When `expire` has to be called.
    """

    __slots__ = (
        "_ahead",
        "_exchange",
        "_half_closed",
        "_lingering",
        "_reading_paused",
        "_server",
        "_unsent",
        "due_s",
        "ending",
        "transport",
        "writing_paused",
    )

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._ahead = b""
        self._exchange: ClientExchange | None = None
        self._half_closed = False
        self._lingering = False
        self._reading_paused = False
        self._unsent = 0
        self.transport: asyncio.Transport | None = None
        self.writing_paused = False
        self.ending = False
        self.due_s = NEVER_S

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """The task that serves the current request."""
        return None if self._exchange is None else self._exchange.task

    # -- the event loop's calls -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the connection; beyond the limit of connections it is refused and closed."""
        self.transport = cast("asyncio.Transport", transport)
        server = self._server
        server.connections.add(self)
        self.due_s = server.now_s + KEEPALIVE_S
        excess = len(server.connections) - server.max_connections
        if excess > MAX_TURNED_AWAY:
            self.transport.abort()
        elif excess > 0:
            text = f"{server.max_connections} connections are open, the configured limit"
            self._refuse(ApiError(503, "too_many_connections", text, retry_after_s=1))

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request, or of several."""
        exchange = self._exchange
        if self._lingering:
            return
        if exchange is None:
            self._ahead = self._ahead + data if self._ahead else data
            self._next()
        elif not exchange.reader.complete:
            self._feed(exchange, data)
        else:
            self._ahead += data
            self._bound_ahead()

    def eof_received(self) -> bool:
        """Notes that the client sends no more.

        A client that waits for an engine's answer counts as gone: closing one direction or both looks the same from here. Requests that
        need no engine, those without a body, are still answered.
        """
        exchange = self._exchange
        self._half_closed = True
        if exchange is None or self._lingering:
            return False
        if exchange.ended:
            return True
        if not exchange.reader.complete or exchange.method == "POST":
            if self.transport is not None:
                self.transport.abort()
            return False
        return True

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the connection is lost either way
        """Cancels the current request: the connection is lost."""
        self.transport = None
        self._server.connections.discard(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.left()

    def pause_writing(self) -> None:
        """Notes that the client reads too slowly."""
        self.writing_paused = True

    def resume_writing(self) -> None:
        """Notes that the client keeps up again."""
        self.writing_paused = False
        if self._exchange is not None:
            self._exchange.drained()

    # -- the server's watch -----------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Acts once `due_s` has passed: the client is idle, is too slow with its request, or does not read its answer."""
        transport, exchange = self.transport, self._exchange
        if transport is None:
            return
        if exchange is not None:
            self.due_s = NEVER_S
            exchange.arrived(ApiError(408, "body_timeout", f"the request body did not arrive within {BODY_TIMEOUT_S:g} s"))
        elif self._lingering:
            transport.abort()
        elif unsent := transport.get_write_buffer_size():
            if unsent == self._unsent:
                transport.abort()
            self._unsent = unsent
            self.due_s = self._server.now_s + BODY_TIMEOUT_S
        elif self._ahead:
            self._refuse(ApiError(408, "head_timeout", f"the request's head did not arrive within {HEAD_TIMEOUT_S:g} s"))
        else:
            transport.close()

    def retire(self) -> None:
        """Closes an idle connection; a busy one ends with its current request."""
        self.ending = True
        if self._exchange is None and self.transport is not None:
            self.transport.close()

    def awaits_body(self) -> None:
        """See `exchange.Carrier`."""
        self.due_s = self._server.now_s + BODY_TIMEOUT_S

    # -- one request after the other --------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Starts the next request, if its head has arrived."""
        data = self._ahead
        if data.startswith(CRLF):
            # An empty line before a request is ignored: old clients end their bodies with one.
            data = self._ahead = data[2:]
        end = data.find(HEAD_END, 0, MAX_HEAD_BYTES)
        if end < 0 or not data[:1].isupper():
            self._await_head(data)
            return
        try:
            head = RequestHead(data[: end + 4])
            reader = BodyReader(head, self._server.max_body_bytes)
            self._ahead = b""
            exchange = self._exchange = ClientExchange(head, reader, self, self._server.common_headers)
            self.ending = self.ending or not head.keep_alive or self._server.closing
            self.due_s = NEVER_S
            rest = data[end + 4 :]
            if reader.complete:
                self._ahead = rest
            elif rest:
                reader.feed(rest)
                self._ahead = reader.rest
        except HttpError as error:
            self._exchange = None
            self._refuse(_malformed(error))
            return
        exchange.task = asyncio.get_running_loop().create_task(self._serve(exchange))

    def _await_head(self, data: bytes) -> None:
        """Handles input that has no head yet, or cannot become one."""
        if data and not data[:1].isupper() and data != b"\r":
            self._refuse(_malformed(HttpError(400, "a request begins with its method, in upper case")))
        elif len(data) >= MAX_HEAD_BYTES:
            self._refuse(ApiError(431, "headers_too_large", f"the request's head is larger than {MAX_HEAD_BYTES} bytes"))
        elif self._half_closed and self.transport is not None:
            self.transport.close()
        elif data and self.due_s > self._server.now_s + HEAD_TIMEOUT_S:
            self.due_s = self._server.now_s + HEAD_TIMEOUT_S

    def _feed(self, exchange: ClientExchange, data: bytes) -> None:
        reader = exchange.reader
        try:
            reader.feed(data)
        except HttpError as error:
            exchange.arrived(_malformed(error))
            self._lingering = True
            return
        if reader.complete or reader.too_large:
            self.due_s = NEVER_S
            self._ahead = reader.rest
            exchange.arrived()
            self._bound_ahead()

    def _bound_ahead(self) -> None:
        if len(self._ahead) > MAX_AHEAD_BYTES and not self._reading_paused and self.transport is not None:
            self._reading_paused = True
            self.transport.pause_reading()

    async def _serve(self, exchange: ClientExchange) -> None:
        try:
            await self._server.handler(exchange, exchange)
        except Exception:
            log.exception("serving a request failed")
        finally:
            if self._exchange is exchange:
                self._served(exchange)

    def _served(self, exchange: ClientExchange) -> None:
        """Continues with the next request, or ends the connection, after the handler has finished."""
        self._exchange = None
        transport = self.transport
        if transport is None:
            return
        if not exchange.ended:
            transport.abort()
            return
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()
        if not exchange.reader.complete:
            self._linger()
        elif self.ending:
            transport.close()
        else:
            self._unsent = 0
            self.due_s = self._server.now_s + KEEPALIVE_S
            if self._ahead:
                self._next()
            elif self._half_closed:
                transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answers invalid input and ends the connection, because the start of the next request is unknown."""
        transport = self.transport
        if transport is None:
            return
        body = error.body()
        framing = f"content-length: {len(body)}\r\nconnection: close\r\n"
        transport.write(answer_head(error.status, error.response_headers(), framing, self._server.common_headers) + body)
        self._linger()

    def _linger(self) -> None:
        """Sends the remaining output, and reads on for a while before the connection is closed."""
        self._ahead = b""
        self._lingering = True
        self.due_s = self._server.now_s + LINGER_S
        transport = self.transport
        if transport is not None:
            if self._half_closed or not transport.can_write_eof():
                transport.close()
            else:
                transport.write_eof()


def _malformed(error: HttpError) -> ApiError:
    code = {501: "unsupported_coding", 505: "unsupported_version"}.get(error.status, "malformed_http")
    return ApiError(error.status, code, f"malformed HTTP request: {error}"[:300])
