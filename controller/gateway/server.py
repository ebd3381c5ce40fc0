"""The transport: aiohttp's low-level server. A raw protocol can take its place by implementing the same two protocols of `transport`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from controller.gateway.errors import ApiError
from controller.gateway.transport import HttpRequest, Responder

BACKLOG = 1024
BODY_TIMEOUT_S = 60.0
KEEPALIVE_S = 75.0
MAX_HEADER_BYTES = 16_384
SERVER = "h-mas"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SILENT = logging.getLogger(f"{__name__}.access")
"""Never written to: telemetry tells about every request, and a line each would cost more than the request."""
SILENT.disabled = True

Handler = Callable[[HttpRequest, Responder], Awaitable[None]]


class AiohttpRequest:
    """One request as aiohttp parsed it."""

    __slots__ = ("_max_body_bytes", "_request", "headers", "method", "path")

    def __init__(self, request: web.BaseRequest, max_body_bytes: int) -> None:
        self._request = request
        self._max_body_bytes = max_body_bytes
        self.method = request.method
        self.path = request.path
        self.headers: Mapping[str, str] = request.headers

    async def body(self) -> bytes:
        """See `transport.HttpRequest.body`."""
        request = self._request
        length = request.content_length
        if length is not None and length > self._max_body_bytes:
            raise self._too_large()
        if request.headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
            # The low-level server leaves this to us; without it curl waits a second before it sends a large body.
            request.transport.write(CONTINUE)
        try:
            if request.content.is_eof():
                return await request.read()
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except TimeoutError:
            raise ApiError(408, "body_timeout", f"the request body did not arrive within {BODY_TIMEOUT_S:g} s") from None
        except (web.RequestPayloadError, ValueError) as error:
            raise ApiError(400, "invalid_body", f"the request body cannot be read: {error}") from None

    def _too_large(self) -> ApiError:
        return ApiError(413, "request_too_large", f"the request body is larger than {self._max_body_bytes} bytes, the configured limit")


class _Stream(web.StreamResponse):
    """A streamed answer whose head leaves together with the first bytes of its body."""

    _send_headers_immediately = False


class AiohttpResponder:
    """The way back to one client.

    Chunks of a stream go straight to the connection: aiohttp's own way to it is three coroutines deep, which a token cannot afford.
    """

    __slots__ = ("_chunked", "_request", "_stream", "_writer", "response")

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._chunked = request.version >= HttpVersion11
        self._stream: _Stream | None = None
        self._writer: AbstractStreamWriter | None = None
        self.response: web.StreamResponse | None = None

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """See `transport.Responder.start`."""
        stream = self._stream = self.response = _Stream(status=status, headers=headers)
        stream.headers["server"] = SERVER
        self._writer = await stream.prepare(self._request)

    def write(self, data: bytes) -> bool:
        """See `transport.Responder.write`."""
        transport = self._request.transport
        if transport is None or transport.is_closing() or self._writer is None:
            raise ConnectionResetError("the client is gone")
        self._writer.send_headers()
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return not self._request.protocol.writing_paused

    async def drain(self) -> None:
        """See `transport.Responder.drain`."""
        assert self._writer is not None
        await self._writer.drain()

    async def finish(self) -> None:
        """See `transport.Responder.finish`."""
        assert self._stream is not None
        await self._stream.write_eof()

    async def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """See `transport.Responder.send`."""
        if self.disconnected:
            raise ConnectionResetError("the client is gone")
        if self.response is not None:
            # An answer is under way: a second one would corrupt it, so the client sees the connection break instead.
            self.abandon()
            return
        self.response = web.Response(status=status, headers=headers, body=body)
        self.response.headers["server"] = SERVER
        await self.response.prepare(self._request)
        await self.response.write_eof()

    def abandon(self) -> None:
        """See `transport.Responder.abandon`."""
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    @property
    def disconnected(self) -> bool:
        """See `transport.Responder.disconnected`."""
        transport = self._request.transport
        return transport is None or transport.is_closing()


class _JsonErrors(RequestHandler):
    """Answers what is not even HTTP in the same JSON as everything else."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """One line of why, in OpenAI's error JSON; the connection is closed after it."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        text = f"malformed HTTP request: {message or exc or status}" if status < 500 else "the gateway failed on this request"
        error = ApiError(status, "malformed_http" if status < 500 else "internal_error", text[:300])
        response = web.Response(status=status, headers=error.response_headers(), body=error.body())
        response.force_close()
        return response


class HttpServer:
    """Listens on one address and hands requests to `handler`; a client that leaves cancels its handler."""

    def __init__(self, handler: Handler, *, host: str, port: int, max_body_bytes: int) -> None:
        self._handler = handler
        self._host = host
        self._port = port
        self._max_body_bytes = max_body_bytes
        self._manager: web.Server | None = None
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port in use."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            OSError: The address cannot be had.
        """
        loop = asyncio.get_running_loop()
        manager = self._manager = web.Server(self._serve, request_factory=self._request, handler_cancellation=True)
        self._server = await loop.create_server(lambda: self._protocol(manager, loop), self._host, self._port, backlog=BACKLOG)

    def stop_listening(self) -> None:
        """Takes no new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    async def close(self, grace_s: float = 1.0) -> None:
        """Ends all connections; handlers under way get `grace_s`."""
        self.stop_listening()
        if self._manager is not None:
            self._manager.pre_shutdown()
            await self._manager.shutdown(grace_s)
        if self._server is not None:
            await self._server.wait_closed()

    def _protocol(self, manager: web.Server, loop: asyncio.AbstractEventLoop) -> RequestHandler:
        return _JsonErrors(
            manager,
            loop=loop,
            access_log=SILENT,
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._max_body_bytes)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        responder = AiohttpResponder(request)
        await self._handler(AiohttpRequest(request, self._max_body_bytes), responder)
        # Nothing was sent only where the client had gone before there was anything to send.
        return responder.response or web.Response(status=499)
