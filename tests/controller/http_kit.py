"""The server of the public port by itself, and clients that speak to it in bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
from typing_kit import of_type

from hmas.controller.gateway.http.exchange import ClientExchange
from hmas.controller.gateway.http.server import HttpServer
from hmas.controller.gateway.http.server_state import Handler
from hmas.controller.gateway.http.transport import HttpRequest, Responder

HOST = b"host: x\r\n"


@dataclass
class Answer:
    """One answer off the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(orjson.loads(self.body)["error"]["code"])


@dataclass
class Client:
    """One connection, in bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, head_only: bool = False) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = b""
        if head_only or first.split()[1] == "100":
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        return Answer(int(first.split()[1]), headers, body)

    async def closed(self) -> bool:
        """Whether the server ends the connection, and says nothing more before it does."""
        return await self.reader.read() == b""


@dataclass
class Serving:
    """A running server and what it was asked."""

    server: HttpServer
    seen: list[tuple[str, str, bytes]] = field(default_factory=list)

    @asynccontextmanager
    async def client(self, **options: int) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, **options)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()


async def echo(request: HttpRequest, out: Responder) -> None:
    """Answers with what it was sent."""
    body = await request.body()
    out.send(200, {"content-type": "text/plain"}, f"{request.method} {request.path} ".encode() + body)


@asynccontextmanager
async def serving(
    handler: Handler = echo, *, max_body_bytes: int = 1 << 20, max_body_bytes_total: int = 64 << 20, max_connections: int = 100
) -> AsyncIterator[Serving]:
    """A server that notes every request it is asked to serve, and answers refusals of its handler as the gateway's door does."""
    from hmas.controller.gateway.errors import ApiError

    async def noted(request: HttpRequest, out: Responder) -> None:
        body = b""
        try:
            await handler(request, out)
            if of_type(ClientExchange, request).reader.complete:
                body = await request.body()
        except ApiError as error:
            out.send(error.status, error.response_headers(), error.body())
        finally:
            found.seen.append((request.method, request.path, body))

    server = HttpServer(
        noted,
        host="127.0.0.1",
        port=0,
        max_body_bytes=max_body_bytes,
        max_body_bytes_total=max_body_bytes_total,
        max_connections=max_connections,
    )
    found = Serving(server)
    await server.start()
    try:
        yield found
    finally:
        await server.close(0.1)


def post(body: bytes, *fields: bytes, path: bytes = b"/a") -> bytes:
    lines = b"".join(line + b"\r\n" for line in fields)
    return b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (path, HOST, lines, len(body), body)


async def until(condition: Callable[[], object]) -> None:
    """Returns as soon as the condition holds; turns of the loop are bounded, not time."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to pass")
