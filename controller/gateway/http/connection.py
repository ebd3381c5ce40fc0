"""One connection of a client: reads requests one at a time, in order, and writes their answers."""

import asyncio
import logging
from typing import cast

from hmas.controller.gateway.errors import ApiError, HttpError
from hmas.controller.gateway.http.answer import answer_head
from hmas.controller.gateway.http.body import BodyReader
from hmas.controller.gateway.http.exchange import ClientExchange
from hmas.controller.gateway.http.head import HEAD_END, RequestHead
from hmas.controller.gateway.http.server_state import ServerState
from hmas.engines.http.pool import watch_peer

BODY_TIMEOUT_S = 60.0
HEAD_TIMEOUT_S = 30.0
KEEPALIVE_S = 75.0
DRAIN_S = 30.0
"""How long a client may take no part of the answer that waits for it. Then its connection is aborted."""
DRAIN_LOOK_S = 5.0
UNTAKEN_S = 60.0
"""How long bytes may be on their way to a client that takes none: its host is down, or its buffers are full and it does not read. A client
may pause for less and go on later. Keepalive waits for this long then, too."""
MIN_DRAINED_BYTES, DRAINED_PART = 16_384, 64
"""Bytes that count as progress, and the part of a large answer's rest (a 64th) that does. Less in `DRAIN_S` is slower than any engine, and
would hold a connection and a slot, or much memory, for long."""
WRITE_BUFFER_BYTES = 1 << 19
"""Bytes of an answer that wait for a slow client before its engine's stream is paused: enough for about 2000 tokens. So most answers
are read from the engine to their end, and their slots are free then, whether the client reads or not."""
LINGER_S = 2.0
"""How long a client that is still sending may continue, ignored, after an answer that ends the connection: closing at once would reset the
connection, and the client would lose the answer before reading it."""

MAX_HEAD_BYTES = 16_384
TOO_MANY = "too_many_connections"
MAX_TURNED_AWAY = 256
"""Connections over the limit that still get a 503. Any further ones are closed without an answer."""

MAX_AHEAD_BYTES = 65_536
"""Bytes of later requests that are buffered while one is served and until its answer is taken. Any beyond them are dropped, and no further
request of this connection is served. They are read all the same: while reading is paused, nothing tells that the client has left."""
MAX_DROPPED_BYTES = 1 << 26
"""Bytes that are dropped before the connection is aborted: to read them takes time from others."""

NEVER_S = float("inf")
CRLF = b"\r\n"
log = logging.getLogger(__name__)


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
        "_drained_s",
        "_dropped",
        "_exchange",
        "_half_closed",
        "_lingering",
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
        self._dropped = 0
        # The answer's bytes that waited for the client when it last made progress, and when that was.
        self._unsent = 0
        self._drained_s = 0.0
        self.transport: asyncio.Transport | None = None
        self.writing_paused = False
        self.ending = False
        self.due_s = NEVER_S

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """The task that serves the current request."""
        return None if self._exchange is None else self._exchange.task

    @property
    def unsent(self) -> int:
        """Bytes of its answers that the client has not taken yet, without those that the kernel holds."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    # -- the event loop's calls -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the connection; beyond the limit of connections an idle one makes room, or else this one is refused and closed."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        watch_peer(transport, untaken_s=UNTAKEN_S)
        server = self._server
        server.connections.add(self)
        self.due_s = server.now_s + KEEPALIVE_S
        excess = len(server.connections) - server.max_connections
        if excess <= 0 or server.make_room():
            server.idle[self] = None
        elif excess > MAX_TURNED_AWAY:
            server.on_refused(TOO_MANY)
            self.transport.abort()
        else:
            text = f"{server.max_connections} connections are open, the configured limit"
            self._refuse(ApiError(503, TOO_MANY, text, retry_after_s=1))

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request, or of several."""
        exchange = self._exchange
        if self._lingering:
            self._drop(data)
        elif exchange is None:
            self._ahead = self._ahead + data if self._ahead else data
            if not self.writing_paused:
                self._next()
            elif len(self._ahead) > MAX_AHEAD_BYTES:
                # The client has not taken its last answer yet, so it gets no further one.
                self._linger()
        elif not exchange.reader.complete:
            self._feed(exchange, data)
        elif len(self._ahead) <= MAX_AHEAD_BYTES:
            self._ahead += data
        else:
            self.ending = True
            self._drop(data)

    def eof_received(self) -> bool:
        """Notes that the client sends no more.

        A client that waits for an engine's answer counts as gone: closing one direction or both looks the same from here. Requests that
        need no engine, those without a body, are still answered.
        """
        exchange = self._exchange
        self._half_closed = True
        if self._lingering:
            return False
        if exchange is None:
            # Requests that wait until the client has taken its last answer are still served.
            return self.writing_paused and bool(self._ahead)
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
        self._server.idle.pop(self, None)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.left()

    def pause_writing(self) -> None:
        """Notes that the client reads too slowly."""
        self.writing_paused = True
        self._await_drain()

    def resume_writing(self) -> None:
        """Notes that the client keeps up again."""
        self.writing_paused = False
        exchange, transport = self._exchange, self.transport
        if exchange is not None:
            self.due_s = NEVER_S if exchange.reader.settled else self._server.now_s + BODY_TIMEOUT_S
            exchange.drained()
        elif transport is not None and not self._lingering and not transport.is_closing():
            self._continue(transport)

    # -- the server's watch -----------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Acts once `due_s` has passed: the client is idle, is too slow with its request, or does not read its answer."""
        transport, exchange = self.transport, self._exchange
        if transport is None:
            return
        if (exchange is None or self.writing_paused) and self.unsent:
            self.give_up(DRAIN_S)
            self.due_s = self._server.now_s + DRAIN_LOOK_S
        elif self._lingering and self._unsent:
            # The client has taken its last answer only since the last look.
            self._unsent, self.due_s = 0, self._server.now_s + LINGER_S
        elif self._lingering:
            transport.abort()
        elif exchange is not None:
            self.due_s = NEVER_S
            if not exchange.reader.settled:
                exchange.arrived(ApiError(408, "body_timeout", f"the request body did not arrive within {BODY_TIMEOUT_S:g} s"))
        elif transport.is_closing():
            transport.abort()
        elif self._unsent:
            # The client has taken its last answer by now; the time for its next request begins.
            self._unsent = 0
            self._server.idle[self] = None
            self.due_s = self._server.now_s + (HEAD_TIMEOUT_S if self._ahead else KEEPALIVE_S)
        elif self._ahead:
            self._refuse(ApiError(408, "head_timeout", f"the request's head did not arrive within {HEAD_TIMEOUT_S:g} s"))
        else:
            transport.close()

    def _await_drain(self) -> None:
        """Starts the time limit for the client to take what has been written."""
        transport, now_s = self.transport, self._server.now_s
        self._unsent = 0 if transport is None else transport.get_write_buffer_size()
        self._drained_s = now_s
        self.due_s = now_s + DRAIN_LOOK_S

    def give_up(self, patience_s: float) -> int:
        """Aborts the connection if its client has taken too little of its answer for `patience_s`; returns the bytes that waited for it."""
        transport, unsent, now_s = self.transport, self.unsent, self._server.now_s
        if transport is None or not unsent or not (self._exchange is None or self.writing_paused):
            return 0
        if unsent <= self._unsent - max(MIN_DRAINED_BYTES, self._unsent // DRAINED_PART):
            self._unsent, self._drained_s = unsent, now_s
            return 0
        if now_s - self._drained_s < patience_s:
            self._unsent = max(self._unsent, unsent)
            return 0
        log.info("a client took too little of the %d bytes that wait for it for %g s, so its connection is aborted", unsent, patience_s)
        self._server.on_unread()
        transport.abort()
        # Its bytes are there until the loop's next turn. So this round may ask again, and does not count it twice.
        self._drained_s = now_s
        return unsent

    def retire(self) -> None:
        """Closes an idle connection; a busy one ends with its current request."""
        self.ending = True
        if self._exchange is None and self.transport is not None:
            self._close(self.transport)

    def awaits_body(self) -> None:
        """Starts the time limit for the client's body."""
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
            reader = BodyReader(head, self._server.max_body_bytes, self._server.body_memory)
            self._ahead = b""
            self._server.idle.pop(self, None)
            exchange = self._exchange = ClientExchange(head, reader, self, self._server)
            self.ending = self.ending or not head.keep_alive
            self.due_s = NEVER_S
            rest = data[end + 4 :]
            if reader.complete:
                self._ahead = rest
            elif rest:
                reader.feed(rest)
                self._ahead = reader.rest
        except HttpError as error:
            begun, self._exchange = self._exchange, None
            if begun is not None:
                begun.release()
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
            self._server.idle.pop(self, None)
            self._server.idle[self] = None

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > MAX_DROPPED_BYTES and self.transport is not None:
            self.transport.abort()

    def _feed(self, exchange: ClientExchange, data: bytes) -> None:
        reader = exchange.reader
        try:
            reader.feed(data)
        except HttpError as error:
            exchange.arrived(_malformed(error))
            self._lingering = True
            return
        if reader.settled:
            self.due_s = NEVER_S
            self._ahead = reader.rest
            exchange.arrived()

    async def _serve(self, exchange: ClientExchange) -> None:
        try:
            await self._server.handler(exchange, exchange)
        except asyncio.CancelledError as error:
            # Nobody awaits this task. If it ended with the exception, it would keep the whole stack and so the request's body.
            error.__traceback__ = error.__context__ = None
        except Exception:
            log.exception("serving a request failed")
        finally:
            exchange.release()
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
        elif not exchange.reader.complete or (self.ending and self._ahead):
            self._linger()
        elif self.ending:
            self._close(transport)
        elif self.writing_paused:
            # The next request begins when the client has taken this answer.
            self._await_drain()
        else:
            self._continue(transport)

    def _continue(self, transport: asyncio.Transport) -> None:
        """Begins the next request if it has arrived, and waits for it otherwise."""
        unsent = self._unsent = transport.get_write_buffer_size()
        now_s = self._drained_s = self._server.now_s
        self._server.idle[self] = None
        self.due_s = now_s + (DRAIN_S if unsent else KEEPALIVE_S)
        if self._ahead:
            self._next()
        elif self._half_closed:
            self._close(transport)

    def _close(self, transport: asyncio.Transport) -> None:
        """Closes the connection as soon as the client has taken its answer."""
        transport.close()
        self._await_drain()

    def _refuse(self, error: ApiError) -> None:
        """Answers invalid input and ends the connection, because the start of the next request is unknown."""
        transport = self.transport
        if transport is None:
            return
        self._server.on_refused(error.code)
        body = error.body()
        framing = f"content-length: {len(body)}\r\nconnection: close\r\n"
        transport.write(answer_head(error.status, error.response_headers(), framing, self._server.common_headers) + body)
        self._linger()

    def _linger(self) -> None:
        """Sends the remaining output, and reads on for a while before the connection is closed."""
        self._ahead = b""
        self._lingering = True
        self._server.idle.pop(self, None)
        self._await_drain()
        self._unsent, self.due_s = 0, self._server.now_s + LINGER_S
        transport = self.transport
        if transport is not None:
            if self._half_closed or not transport.can_write_eof():
                transport.close()
            else:
                transport.write_eof()


def _malformed(error: HttpError) -> ApiError:
    code = {501: "unsupported_coding", 505: "unsupported_version"}.get(error.status, "malformed_http")
    return ApiError(error.status, code, f"malformed HTTP request: {error}"[:300])
