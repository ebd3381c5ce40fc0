"""One connection to an engine: writes a request, reads its answer, and is free for the next."""

import asyncio
from typing import Protocol, cast

import httptools

from hmas.engines.http.errors import ConnectionBroken
from hmas.engines.http.exchange import Exchange

MAX_HEAD_BYTES = 65_536
NO_BODY = frozenset({204, 304})


class Owner(Protocol):
    """Who keeps connections."""

    def freed(self, connection: "Connection") -> None:
        """The answer has ended; the connection may carry another request."""
        ...

    def lost(self, connection: "Connection") -> None:
        """The connection is gone."""
        ...


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time. A second answer to one request breaks it.

    Attributes:
        transport: None before it stands and after it is gone.
        exchange: The one under way.
        requests: How many have been sent on it.
        heard: Whether anything has come back to the last one.
        awaited: Whether somebody waits for the body just now.
        idle_since_s: When it became free, by the loop's clock. Kept by the owner.
    """

    __slots__ = (
        "_complete",
        "_head_bytes",
        "_keep_alive",
        "_owner",
        "_parser",
        "_parts",
        "_paused",
        "_quiet_rounds",
        "_raw",
        "_until_close",
        "awaited",
        "exchange",
        "heard",
        "idle_since_s",
        "on_body",
        "on_header",
        "requests",
        "transport",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._raw: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        # The parser calls these two most, and calling a method of a built-in object costs a tenth of calling a function of ours.
        self.on_header = self._raw.setdefault
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._complete = False
        self._head_bytes = 0
        self._keep_alive = False
        self._until_close = False
        self._paused = False
        self._quiet_rounds = 0
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.requests = 0
        self.heard = False
        self.awaited = False
        self.idle_since_s = 0.0

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        return self.transport is not None and not self.transport.is_closing() and self.exchange is None

    def send(self, head: bytes, body: bytes) -> Exchange:
        """Sends one whole request.

        Raises:
            ConnectionBroken: The connection is gone.
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
        """Reads nothing more."""
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Reads on."""
        if self._paused and self.transport is not None:
            self._paused = False
            self._quiet_rounds = 0
            self.transport.resume_reading()

    def drop(self, error: Exception | None = None) -> None:
        """Ends the connection at once; an exchange under way is told `error`."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.broke(error or ConnectionBroken("the gateway closed the connection"))
        if self.transport is not None:
            self.transport.abort()

    def watched(self) -> int:
        """Rounds of the watch in a row, this one included, in which somebody waited for the body and nothing of it came."""
        if self.exchange is None or self._paused or not self.awaited:
            self._quiet_rounds = 0
        else:
            self._quiet_rounds += 1
        return self._quiet_rounds

    # -- the event loop's calls ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        exchange = self.exchange
        if exchange is None:
            # Unasked for, so it is no answer to anything.
            self.drop()
            return
        self._quiet_rounds = 0
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
        except Exception as error:  # noqa: BLE001 - what `take` raises goes to whoever awaits the exchange
            self.drop(error)
        else:
            if self._complete:
                if self.exchange is exchange:
                    self._end(exchange)
            elif not exchange.status:
                self._bound_head(len(data))

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self.transport = None
        self._owner.lost(self)
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
        """The head is there. An interim one (1xx) is passed over."""
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
        if self._keep_alive:
            self._owner.freed(self)
        elif self.transport is not None:
            self.transport.close()

    def _bound_head(self, read: int) -> None:
        self._head_bytes += read
        if self._head_bytes > MAX_HEAD_BYTES:
            self.drop(ConnectionBroken(f"the answer's head is larger than {MAX_HEAD_BYTES} bytes"))
