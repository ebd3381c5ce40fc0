"""From the model's steps to clients: the driver in real time, and the receivers of tokens."""

import asyncio
from asyncio import Future, Transport
from collections.abc import Awaitable, Callable
from typing import Protocol

from hmas.engines.sim.model import EngineModel, SimRequest, StepResult, TokenEvent
from hmas.engines.sim.reply import Reply

MAX_CATCH_UP_S = 0.02
"""A late step is dated back by at most this; any further delay counts as a stall of the engine, as in a real one."""


class Sink(Protocol):
    """Receives the tokens of one request after each step of the engine."""

    def token(self, event: TokenEvent) -> bool:
        """Receives one token. Returns False if the client has disconnected."""

    def abort(self) -> None:
        """The request has been aborted: there will be no more tokens."""


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


class Driver:
    """Runs one model in real time.

    Each step begins when the step before it ended, not when the timer fired, so timer errors do not add up.

    Args:
        model: The engine.
        settle: Awaited before each step. On a loop in virtual time it returns when nothing more can reach the engine at this moment; None
            on a loop in real time, which has no such moment.

    Attributes:
        model: The engine.
        stalled_s: Time lost since the start because the host was too busy to step in time, seconds.
    """

    def __init__(self, model: EngineModel, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        self.model = model
        self._settle = settle
        self.stalled_s = 0.0
        self._sinks: dict[str, Sink] = {}
        self._wake = asyncio.Event()

    def start(self, request: SimRequest, sink: Sink) -> None:
        """Adds a request to the engine; its tokens go to `sink`.

        Raises:
            EngineError: As `EngineModel.add`.
        """
        self.model.add(request)
        self._sinks[request.id] = sink
        self._wake.set()

    def drop(self, request_id: str) -> None:
        """Removes a request whose client has disconnected; does nothing if the request has ended."""
        if self._sinks.pop(request_id, None) is not None:
            self.model.abort(request_id)

    def abort(self, request_id: str) -> bool:
        """Ends a request at its client's order: its answer ends with the reason `abort`."""
        sink = self._sinks.pop(request_id, None)
        if sink is None:
            return False
        self.model.abort(request_id)
        sink.abort()
        return True

    async def run(self) -> None:
        """Steps until cancelled."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while True:
            late_s = loop.time() - begin_s - MAX_CATCH_UP_S
            if late_s > 0:
                self.stalled_s += late_s
                begin_s += late_s
            if self._settle is not None:
                await self._settle()
            result = self.model.step(begin_s)
            if result is None:
                self._wake.clear()
                await self._wake.wait()
                begin_s = loop.time()
                continue
            await until(loop, result.end_s)
            self._deliver(result)
            begin_s = result.end_s

    def _deliver(self, result: StepResult) -> None:
        sinks = self._sinks
        for event in result.produced:
            # The sink is missing if the request was dropped while the step ran.
            sink = sinks.get(event.id)
            if sink is None:
                continue
            listens = sink.token(event)
            if event.finished:
                del sinks[event.id]
            elif not listens:
                self.drop(event.id)


async def until(loop: asyncio.AbstractEventLoop, at_s: float) -> None:
    """Returns at `at_s` of the loop's time; `asyncio.sleep` of the difference would add a rounding error to every step."""
    reached: asyncio.Future[None] = loop.create_future()
    timer = loop.call_at(at_s, _reach, reached)
    try:
        await reached
    finally:
        timer.cancel()


def _reach(reached: "asyncio.Future[None]") -> None:
    if not reached.done():
        reached.set_result(None)
