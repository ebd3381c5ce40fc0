"""The receivers of tokens: an SSE stream, an answer sent as a whole, or one that a fault breaks off."""

from asyncio import Future, Transport
from typing import Protocol

from hmas.engines.sim.faults import Fault, reset
from hmas.engines.sim.model import TokenEvent
from hmas.engines.sim.reply import Reply


class Sink(Protocol):
    """Receives the tokens of one request after each step of the engine."""

    def token(self, event: TokenEvent) -> bool:
        """Receives one token. Returns False if the client has disconnected."""
        ...

    def abort(self) -> None:
        """The request has been aborted: there will be no more tokens."""
        ...


class Stream:
    """Writes each token to the connection as it comes, with one write per token and no task switch.

    The answer of a client that does not read stays in the connection's buffer, whose size the context length limits.

    Args:
        reply: Renders the tokens.
        transport: The connection; the response's head has been written.
        done: Resolved after the last byte of the body.
        chunked: Whether the body is sent in chunks (HTTP/1.1); otherwise it ends with the connection.
    """

    __slots__ = ("_chunked", "_done", "_reply", "_tokens", "_transport")

    def __init__(self, reply: Reply, transport: Transport, done: "Future[None]", *, chunked: bool) -> None:
        self._reply = reply
        self._transport = transport
        self._done = done
        self._chunked = chunked
        self._tokens = 0

    def token(self, event: TokenEvent) -> bool:
        """Writes one token's events."""
        if self._transport.is_closing():
            self.end()
            return False
        self._tokens = event.tokens_so_far
        self.write(self._reply.chunk(event.tokens_so_far, first=event.first, finished=event.finished))
        if event.finished:
            self.end()
        return True

    def abort(self) -> None:
        """Ends the stream with the finish reason `abort`."""
        if not self._transport.is_closing():
            self.write(self._reply.broken_off(self._tokens))
        self.end()

    def write(self, data: bytes) -> None:
        """Writes part of the body."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        """Nothing more will be written."""
        if not self._done.done():
            self._done.set_result(None)


class Whole:
    """Counts tokens until the last one.

    Args:
        transport: The connection, to detect a client's disconnect.
        done: Resolved with the number of tokens, and whether the answer was aborted after them.
    """

    __slots__ = ("_done", "_tokens", "_transport")

    def __init__(self, transport: Transport, done: "Future[tuple[int, bool]]") -> None:
        self._transport = transport
        self._done = done
        self._tokens = 0

    def token(self, event: TokenEvent) -> bool:
        """Counts one token."""
        self._tokens = event.tokens_so_far
        if event.finished and not self._done.done():
            self._done.set_result((self._tokens, False))
        if self._transport.is_closing():
            self.abort()
            return False
        return True

    def abort(self) -> None:
        """Ends the answer with the tokens so far."""
        if not self._done.done():
            self._done.set_result((self._tokens, True))


class Faulty:
    """Passes tokens on up to the fault's count, then applies the fault.

    Args:
        inner: The actual sink.
        fault: `reset-after`, `half-sse` or `stall`.
        transport: The connection.
    """

    __slots__ = ("_fault", "_inner", "_transport")

    def __init__(self, inner: Sink, fault: Fault, transport: Transport) -> None:
        self._inner = inner
        self._fault = fault
        self._transport = transport

    def token(self, event: TokenEvent) -> bool:
        """Passes a token on, or breaks off."""
        if event.tokens_so_far <= self._fault.value and not event.finished:
            return self._inner.token(event)
        if self._fault.kind == "reset-after":
            reset(self._transport)
            self._inner.abort()
            return False
        if self._fault.kind == "half-sse" and isinstance(self._inner, Stream):
            self._inner.write(b'data: {"id":"chatcmpl-half","object":"chat.completion.chunk","choices":[{"index":0,"del')
            self._inner.end()
            return False
        return True

    def abort(self) -> None:
        """Passes the abort on."""
        self._inner.abort()
