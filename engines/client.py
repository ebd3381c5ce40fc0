"""HTTP towards one engine: a session tuned for streams, typed failures, and a safe second try on a stale connection."""

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace

import aiohttp
from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from engines.errors import EngineProtocolError, EngineUnavailable

KEEPALIVE_S = 4.0
"""Below the 5 s after which uvicorn (and so vLLM) closes an idle connection."""

RETRY_WITHIN_S = 1.0
"""A pooled connection that breaks later than this after the request went out was not stale: the engine has begun to work."""

ATTEMPTS = 3
CONTROL_TIMEOUT_S = 5.0
MAX_CONTROL_BYTES = 16 << 20
RAW_BODY_LIMIT = 1 << 20


class HttpResponse:
    """An engine's answer whose head has arrived. See `engines.base.EngineResponse`."""

    __slots__ = ("_idle_s", "_reading_since_s", "_response", "_silent", "_timer", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, idle_s: float) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._idle_s = idle_s
        self._reading_since_s: float | None = None
        self._silent = False
        self._timer: asyncio.TimerHandle | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive.

        Raises:
            EngineUnavailable: The connection broke, or the engine was silent for too long, before the body's end.
        """
        loop = asyncio.get_running_loop()
        content = self._response.content
        # One timer a response instead of one a read: silence counts only while somebody waits for the engine.
        self._timer = loop.call_later(self._idle_s, self._watch)
        try:
            while True:
                self._reading_since_s = loop.time()
                data = await content.readany()
                self._reading_since_s = None
                if not data:
                    return
                yield data
        except (aiohttp.ClientError, OSError) as error:
            reason = f"silent for {self._idle_s:g} s" if self._silent else _reason(error)
            raise EngineUnavailable(f"the engine broke off in the middle of its answer: {reason}") from error
        finally:
            self._timer.cancel()

    async def close(self) -> None:
        """Lets the connection go; before the body's end this drops it, so that the engine sees its client leave."""
        if self._timer is not None:
            self._timer.cancel()
        self._response.close()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        since_s = self._reading_since_s
        left_s = self._idle_s if since_s is None else since_s + self._idle_s - loop.time()
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._watch)
            return
        self._silent = True
        self._response.close()


class EngineClient:
    """The connections to one engine.

    Args:
        name: The instance's name, for error texts.
        url: Base address without a path.
        api_key: Bearer token towards the engine, empty for none.
        connect_timeout_s: How long to wait for the engine to accept a connection.
        idle_timeout_s: Silence in the middle of an answer after which it counts as broken. Before the head only the caller's own
            deadline counts: an answer that is not streamed has no head until it is complete.
    """

    def __init__(self, *, name: str, url: str, api_key: str = "", connect_timeout_s: float = 5.0, idle_timeout_s: float = 120.0) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self._authorization = f"Bearer {api_key}" if api_key else ""
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    async def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> HttpResponse:
        """Posts a body and returns when the response's head is there.

        Raises:
            EngineUnavailable: No head came.
        """
        full = self._headers(headers)
        full.setdefault(hdrs.CONTENT_TYPE, "application/json")
        loop = asyncio.get_running_loop()
        for attempt in range(1, ATTEMPTS + 1):
            context = SimpleNamespace(reused=False)
            begun_s = loop.time()
            try:
                response = await self._open().post(
                    self._url(path),
                    # aiohttp wants large bodies as files, so that writing one does not hold up the loop.
                    data=body if len(body) < RAW_BODY_LIMIT else io.BytesIO(body),
                    headers=full,
                    allow_redirects=False,
                    trace_request_ctx=context,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                stale = context.reused and loop.time() - begun_s < RETRY_WITHIN_S
                if not stale or attempt == ATTEMPTS:
                    raise EngineUnavailable(f"engine {self.name} at {self.url}: {_reason(error)}") from error
            except (aiohttp.ClientError, OSError) as error:
                raise EngineUnavailable(f"engine {self.name} at {self.url}: {_reason(error)}") from error
            else:
                return HttpResponse(response, self._idle_timeout_s)
        raise AssertionError("the last attempt returns or raises")

    async def get(self, path: str, *, timeout_s: float = CONTROL_TIMEOUT_S) -> tuple[int, bytes]:
        """Status and body of a GET.

        Raises:
            EngineUnavailable: No answer came in time.
            EngineProtocolError: The body is larger than any of the engine's own documents.
        """
        return await self._control(hdrs.METH_GET, path, None, timeout_s)

    async def post(self, path: str, body: bytes, *, timeout_s: float = CONTROL_TIMEOUT_S) -> tuple[int, bytes]:
        """Status and body of a short control POST. Raises as `get`."""
        return await self._control(hdrs.METH_POST, path, body, timeout_s)

    async def close(self) -> None:
        """Closes every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _control(self, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        headers = self._headers({} if body is None else {hdrs.CONTENT_TYPE: "application/json"})
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_timeout_s)
        try:
            async with self._open().request(
                method, self._url(path), data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                data = await response.content.read(MAX_CONTROL_BYTES)
                while more := await response.content.read(MAX_CONTROL_BYTES):
                    data += more
                    if len(data) > MAX_CONTROL_BYTES:
                        raise EngineProtocolError(f"engine {self.name}: {path} answers more than {MAX_CONTROL_BYTES} bytes")
                return response.status, data
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"engine {self.name} at {self.url}: {path}: {_reason(error)}") from error

    def _headers(self, headers: Mapping[str, str]) -> CIMultiDict[str]:
        full = CIMultiDict(headers)
        # Bodies are passed on as they are, so they must not come compressed.
        full[hdrs.ACCEPT_ENCODING] = "identity"
        if self._authorization:
            full.setdefault(hdrs.AUTHORIZATION, self._authorization)
        return full

    def _url(self, path: str) -> URL:
        url = self._urls.get(path)
        if url is None:
            url = URL(self.url + path)
            if len(self._urls) < 64:
                self._urls[path] = url
        return url

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_mark_reused)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=_watched_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s, sock_read=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trace_configs=[trace],
            )
        return self._session


def _watched_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket whose kernel notices within half a minute that the engine's host is gone: nothing else would, before the head."""
    family, kind, protocol, _name, _address = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


async def _mark_reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.reused = True


def _reason(error: Exception) -> str:
    """What happened, in words: some of aiohttp's errors have no text of their own."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
