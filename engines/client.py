"""The HTTP client of one engine: typed failures that name no address, bounded answers, and requests that are sent once."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Coroutine, Mapping
from typing import Any

from hmas.engines.errors import ConnectionBroken, EngineError, EngineProtocolError, EngineSilent, EngineUnavailable, StaleConnection
from hmas.engines.http.connection import Connection
from hmas.engines.http.exchange import Exchange
from hmas.engines.http.pool import Pool

STALE_WITHIN_S = 1.0
"""If a pooled connection breaks later than this after the request was sent, it was not stale: the engine has begun to work."""

CONTROL_TIMEOUT_S = 5.0
MAX_CONTROL_BYTES = 16 << 20
MAX_PREFIXES = 64


class EngineClient:
    """The connections to one engine.

    Args:
        name: The instance's name, for error messages.
        url: Base address without a path.
        api_key: Bearer token for the engine, empty for none.
        idle_timeout_s: Silence in the middle of an answer after which it ends. Before the head, and before a stream has begun its answer,
            only the caller's own deadline counts, because an answer that is not streamed has no head until it is complete.
    """

    def __init__(self, *, name: str, url: str, api_key: str = "", connect_timeout_s: float = 5.0, idle_timeout_s: float = 120.0) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self._authorization = f"Bearer {api_key}" if api_key else ""
        self.pool = Pool(self.url, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s)
        self._prefixes: dict[tuple[str, str], str] = {}

    def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Coroutine[Any, Any, Exchange]:
        """Posts a body, once, and returns when the response's head has arrived.

        Raises:
            StaleConnection: A kept connection ended before any byte of the answer; the next request gets a new connection.
            EngineUnavailable: No head came for another reason.
        """
        return self._ask(self._head("POST", path, headers, body), body)

    async def get(self, path: str, *, timeout_s: float = CONTROL_TIMEOUT_S) -> tuple[int, bytes]:
        """Returns status and body of a GET.

        Raises:
            EngineUnavailable: No answer came in time.
            EngineProtocolError: The body is larger than any document that an engine sends.
        """
        return await self._control("GET", path, None, timeout_s)

    async def post(
        self, path: str, body: bytes, *, timeout_s: float = CONTROL_TIMEOUT_S, max_bytes: int = MAX_CONTROL_BYTES
    ) -> tuple[int, bytes]:
        """Returns status and body of a short control POST; `max_bytes` limits the answer's body. Raises as `get` does."""
        return await self._control("POST", path, body, timeout_s, max_bytes)

    async def call(self, method: str, path: str) -> tuple[int, bytes]:
        """Returns status and body of a request without a document. Raises as `get` does."""
        return await self._control(method, path, b"" if method == "POST" else None, CONTROL_TIMEOUT_S)

    async def close(self) -> None:
        """Closes every connection."""
        await self.pool.close()

    async def _control(
        self, method: str, path: str, body: bytes | None, timeout_s: float, max_bytes: int = MAX_CONTROL_BYTES
    ) -> tuple[int, bytes]:
        head = self._head(method, path, {}, body)
        try:
            async with asyncio.timeout(timeout_s):
                exchange = await self._ask_again(head, body or b"")
                try:
                    data = b""
                    while more := await exchange.read():
                        data += more
                        if len(data) > max_bytes:
                            raise EngineProtocolError(f"engine {self.name}: {path} answers more than {max_bytes} bytes")
                    return exchange.status, data
                finally:
                    exchange.drop()
        except (TimeoutError, ConnectionBroken, EngineSilent) as error:
            raise EngineUnavailable(f"engine {self.name}: {path}: {_reason(error)}") from error

    async def _ask_again(self, head: bytes, body: bytes) -> Exchange:
        """As `_ask` for a control request, which may be sent twice: once more if its connection was stale."""
        with contextlib.suppress(StaleConnection):
            return await self._ask(head, body)
        return await self._ask(head, body)

    async def _ask(self, head: bytes, body: bytes) -> Exchange:
        """Sends a request and returns when the answer's head has arrived.

        Raises:
            StaleConnection: A kept connection ended before any byte of the answer.
            EngineUnavailable: No head came for another reason.
        """
        loop = asyncio.get_running_loop()
        connection = self.pool.free()
        begun_s = loop.time()
        try:
            if connection is None:
                connection = await self.pool.connect()
            exchange = connection.send(head, body)
            try:
                await exchange.head()
            except BaseException:
                exchange.drop()
                raise
        except (OSError, ConnectionBroken) as error:
            if connection is not None and _was_stale(connection, loop.time() - begun_s):
                # The engine has probably closed the other idle connections, too.
                self.pool.drop_idle()
                raise StaleConnection(f"engine {self.name}: it closed a kept connection before any byte of its answer") from error
            raise EngineUnavailable(f"engine {self.name}: {_reason(error)}") from error
        return exchange

    def _head(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """Builds the request's head, from the request line to the empty line.

        Raises:
            EngineError: A header contains a line break.
        """
        prefix = self._prefixes.get((method, path))
        if prefix is None:
            # Answers are passed on unchanged, so the engine must not compress them.
            prefix = f"{method} {path} HTTP/1.1\r\nhost: {self.pool.authority}\r\nuser-agent: h-mas\r\naccept-encoding: identity\r\n"
            # A path with an id in it is rarely used twice.
            if len(self._prefixes) < MAX_PREFIXES and not path.startswith("/v1/responses/"):
                self._prefixes[method, path] = prefix
        lines = [prefix]
        named = ""
        for name, value in headers.items():
            line = f"{name}: {value}\r\n"
            if line.count("\n") != 1 or line.count("\r") != 1:
                raise EngineError(f"engine {self.name}: header {name!r} has a line break in it")
            lines.append(line)
            named += f" {name.lower()}"
        if self._authorization and "authorization" not in named:
            lines.append(f"authorization: {self._authorization}\r\n")
        if body is not None:
            if "content-type" not in named:
                lines.append("content-type: application/json\r\n")
            lines.append(f"content-length: {len(body)}\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")


def _was_stale(connection: Connection, waited_s: float) -> bool:
    """Whether the engine had closed the connection before the request arrived: it broke soon, and nothing was received."""
    return connection.requests > 1 and not connection.heard and waited_s < STALE_WITHIN_S


def _reason(error: Exception) -> str:
    """The text of an error without the engine's address: clients see it, and operators know the address by the engine's name."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or type(error).__name__}"
    if isinstance(error, OSError):
        # The system's own text of a failed connection has the address in it, and so has a list of several failures, which has no number.
        if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno)
        return error.strerror or "it cannot be reached"
    return str(error) or type(error).__name__
