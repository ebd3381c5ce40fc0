"""One connection to an engine: it sends a request, reads the answer, and is then free for the next request."""

import asyncio
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import httptools

from hmas.engines.errors import ConnectionBroken
from hmas.engines.http.exchange import Exchange

if TYPE_CHECKING:
    from hmas.engines.http.pool import Pool

MAX_HEAD_BYTES = 65_536
NO_BODY = frozenset({204, 304})


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time. A second answer to one request breaks it.

    Attributes:
        transport: None before the connection is established and after it has ended.
        exchange: The exchange in progress.
        requests: How many requests have been sent on this connection.
        heard: Whether any bytes of the answer to the last request have arrived.
        awaited: Whether a reader waits for more of an answer that has begun.
        quiet_rounds: Watch rounds in a row in which one waited and nothing came.
        idle_since_s: When the connection became free, by the loop's clock. Set by the pool.
    """

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._raw: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        # The parser calls these two most often, and a call of a built-in method costs a tenth of a call of a Python function.
        self.on_header = self._raw.setdefault
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._complete = False
        self._head_bytes = 0
        self._keep_alive = False
        self._until_close = False
        self._paused = False
        self.quiet_rounds = 0
        self._readable: Callable[[int], object] | None = None
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.requests = 0
        self.heard = False
        self.awaited = False
        self.idle_since_s = 0.0

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on this connection."""
        return self.transport is not None and not self.transport.is_closing() and self.exchange is None

    @property
    def clean(self) -> bool:
        """Whether nothing has arrived since the last answer: bytes that answer nothing, or the connection's end.

        The event loop may not have read them yet, so the socket itself is asked.
        """
        return self._readable is None or not self._readable(0)

    def send(self, head: bytes, body: bytes) -> Exchange:
        """Sends one whole request.

        Raises:
            ConnectionBroken: The connection has ended.
        """
        transport = self.transport
        if transport is None:
            raise ConnectionBroken("the engine closed the connection")
        exchange = self.exchange = Exchange(self)
        self.requests += 1
        self._head_bytes = 0
        self.heard = self.awaited = self._complete = self._until_close = False
        if len(body) < 65_536:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return exchange

    def pause(self) -> None:
        """Stops reading."""
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Continues reading."""
        if self._paused and self.transport is not None:
            self._paused = False
            self.quiet_rounds = 0
            self.transport.resume_reading()

    def drop(self, error: Exception | None = None) -> None:
        """Ends the connection at once; an exchange in progress fails with `error`."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.broke(error or ConnectionBroken("the gateway closed the connection"))
        if self.transport is not None:
            self.transport.abort()

    def watched(self) -> int:
        """Counts a watch round; returns `quiet_rounds`."""
        if self.exchange is None or self._paused or not self.awaited:
            self.quiet_rounds = 0
        else:
            self.quiet_rounds += 1
        return self.quiet_rounds

    # -- the event loop's calls ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self.transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            poller = select.poll()
            poller.register(sock.fileno(), select.POLLIN)
            self._readable = poller.poll

    def data_received(self, data: bytes) -> None:
        """Parses bytes of an answer and passes the body on."""
        exchange = self.exchange
        if exchange is None:
            # No request is in progress, so these bytes answer nothing.
            self.drop()
            return
        self.quiet_rounds = 0
        self.heard = True
        parts = self._parts
        try:
            self._parser.feed_data(data)
            if parts:
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                take = exchange.take
                if take is None:
                    exchange.took(body)
                elif not take(body):
                    self.pause()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.drop(ConnectionBroken(f"this is no HTTP answer: {error.__context__ or error}"))
        except Exception as error:  # noqa: BLE001 - what `take` raises is passed to the awaiter of the exchange
            self.drop(error)
        else:
            if self._complete:
                if self.exchange is exchange:
                    self._end(exchange)
            elif not exchange.status:
                self._bound_head(len(data))

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        self.transport = self._readable = None
        self._pool.lost(self)
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        if self._until_close and error is None:
            exchange.ended()
        else:
            exchange.broke(ConnectionBroken(str(error or "the engine closed the connection")))

    # -- the parser's calls -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self._complete:
            raise ConnectionBroken("more bytes than one answer")
        self._raw.clear()

    def on_headers_complete(self) -> None:
        """The head has arrived. An interim head (1xx) is ignored."""
        status = self._parser.get_status_code()
        exchange = self.exchange
        if status < 200 or exchange is None:
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._raw.items()}
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            raise ConnectionBroken(f"transfer-encoding is {coding[:40]!r}; understood: chunked")
        self._keep_alive = self._parser.should_keep_alive()
        self._until_close = coding is None and "content-length" not in headers and status not in NO_BODY
        exchange.arrived(status, headers)

    def on_message_complete(self) -> None:
        """The answer has ended."""
        exchange = self.exchange
        self._complete = exchange is not None and exchange.status > 0

    def _end(self, exchange: Exchange) -> None:
        self.resume()
        self.exchange = None
        exchange.ended()
        if self.transport is None:
            return
        if self._keep_alive and not self.transport.get_write_buffer_size():
            self._pool.freed(self)
        else:
            # An engine that has answered early may still take the body: the next request would wait behind it.
            self.transport.abort()

    def _bound_head(self, read: int) -> None:
        self._head_bytes += read
        if self._head_bytes > MAX_HEAD_BYTES:
            self.drop(ConnectionBroken(f"the answer's head is larger than {MAX_HEAD_BYTES} bytes"))
