"""The connections to an engine, against a server that says exactly what it is told to."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hmas_lab.virtual_loop import VirtualLoop, run_virtual

from hmas.engines.client import EngineClient
from hmas.engines.errors import EngineError, EngineSilent, EngineUnavailable, StaleConnection

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


@dataclass
class Scripted:
    """A server whose every connection is served by a script, once a request has been read. `files`: descriptors of its sockets."""

    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    files: list[int] = field(default_factory=list)


@asynccontextmanager
async def scripted(script: Script, *, reads: bool = True, **options: Any) -> AsyncIterator[tuple[Scripted, EngineClient]]:
    server = Scripted()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        writers.append(writer)
        server.files.append(writer.get_extra_info("socket").fileno())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next((int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")), 0)
                server.requests.append(head + await reader.readexactly(length if reads else 0))
                await script(reader, writer, len(server.requests))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    client = EngineClient(name="e1", url=server.url, **options)
    try:
        yield server, client
    finally:
        await client.close()
        listening.close()
        for writer in writers:
            writer.transport.abort()
        await listening.wait_closed()


def says(*pieces: bytes, close: bool = False) -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: int) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return script


async def ask(client: EngineClient, body: bytes = b"{}") -> tuple[int, bytes]:
    response = await client.send("/x", body, {"x-request-id": "r"})
    found = b"".join([chunk async for chunk in response.chunks()])
    await response.close()
    return response.status, found


async def test_the_request_as_it_goes_over_the_wire():
    async with scripted(says(CHUNKED)) as (server, client):
        response = await client.send("/v1/x", b'{"a": 1}', {"X-Request-Id": "r"})
        assert response.headers["content-type"] == "text/plain"
        await response.close()
    (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert body == b'{"a": 1}'
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert {b"X-Request-Id: r", b"accept-encoding: identity", b"content-type: application/json", b"content-length: 8"} <= set(
        head.split(b"\r\n")
    )


async def test_an_answer_is_the_same_however_it_is_cut():
    for at in range(1, len(CHUNKED)):
        async with scripted(says(CHUNKED[:at], CHUNKED[at:])) as (_, client):
            assert await ask(client) == (200, b"hello world")
    async with scripted(says(*(CHUNKED[at : at + 1] for at in range(len(CHUNKED))))) as (_, client):
        assert await ask(client) == (200, b"hello world")


@pytest.mark.parametrize(
    ("wire", "found"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + PLAIN, (200, b"ok")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 302 Found\r\nlocation: /y\r\ncontent-length: 0\r\n\r\n", (302, b"")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", (200, b"")),
    ],
    ids=["interim answers", "no content", "a redirect is no order", "an empty body"],
)
async def test_answers_of_every_kind(wire: bytes, found: tuple[int, bytes]):
    async with scripted(says(wire)) as (server, client):
        assert await ask(client) == found
        assert await ask(client) == found
    assert server.connections == 1


async def test_a_body_that_ends_with_its_connection():
    async with scripted(says(b"HTTP/1.1 200 OK\r\n\r\nall of", b" it", close=True)) as (server, client):
        assert await ask(client) == (200, b"all of it")
        assert await ask(client) == (200, b"all of it")
    assert server.connections == 2


async def test_a_connection_whose_request_was_answered_before_it_was_read_is_not_used_again():
    async def answers_the_head(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: int) -> None:
        writer.write(PLAIN)
        await writer.wait_closed()

    async with scripted(answers_the_head, reads=False) as (server, client), asyncio.timeout(5):
        # More than the kernel takes: what is left of it would go before the next request.
        assert await ask(client, b"x" * (16 << 20)) == (200, b"ok")
        assert await ask(client) == (200, b"ok")
    assert server.connections == 2


async def test_a_connection_that_is_to_end_is_not_used_again():
    async with scripted(says(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")) as (server, client):
        await ask(client)
        await ask(client)
    assert server.connections == 2


@pytest.mark.parametrize(
    "wire",
    [
        b"<html>hello</html>\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\na: b\n c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000,
        b"",
    ],
    ids=["no HTTP", "two lengths", "length and chunked", "another coding", "a folded line", "a head without an end", "nothing"],
)
async def test_what_is_no_answer_is_named_so(wire: bytes):
    async with scripted(says(wire, close=not wire)) as (_, client):
        with pytest.raises(EngineUnavailable, match="engine e1: "):
            await client.send("/x", b"{}", {})


@pytest.mark.parametrize(
    "wire", [CHUNKED[:-9], CHUNKED[:-12] + b"zz\r\n", PLAIN[:-1], PLAIN + PLAIN], ids=["half", "garbage", "short", "two"]
)
async def test_a_body_that_breaks_off_is_told(wire: bytes):
    async with scripted(says(wire, close=True)) as (_, client):
        with pytest.raises(EngineUnavailable, match=r"broke off|no HTTP answer|more bytes"):
            await ask(client)


async def test_a_stale_connection_is_told_and_the_request_is_not_sent_again():
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        if number == 2:
            writer.close()
        elif number == 5:
            writer.write(PLAIN[:20])
            await writer.drain()
            writer.close()
        else:
            writer.write(PLAIN)

    async with scripted(script) as (server, client):
        assert await ask(client) == (200, b"ok")
        with pytest.raises(StaleConnection, match="engine e1"):
            await ask(client)
        assert len(server.requests) == 2
        assert await ask(client) == (200, b"ok"), "on a new connection"
        assert await ask(client) == (200, b"ok")
        assert (server.connections, len(server.requests)) == (2, 4)
        with pytest.raises(EngineUnavailable) as broken:
            await ask(client)
        assert not isinstance(broken.value, StaleConnection), "something came back, so it had begun"
        assert len(server.requests) == 5


async def test_a_control_request_is_sent_once_more():
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        if number == 2:
            writer.close()
        else:
            writer.write(PLAIN)

    async with scripted(script) as (server, client):
        assert await client.get("/x") == (200, b"ok")
        assert await client.get("/x") == (200, b"ok")
        assert (server.connections, len(server.requests)) == (2, 3)


async def test_a_second_answer_does_not_reach_the_next_request():
    """It is in the socket already, but the event loop has not read it when the next request takes the connection."""
    async with scripted(says(PLAIN)) as (server, client):
        assert await ask(client) == (200, b"ok")
        os.write(server.files[0], b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother")
        assert await ask(client) == (200, b"ok")
    assert server.connections == 2


async def test_an_end_that_the_event_loop_has_not_seen_costs_no_request():
    async with scripted(says(PLAIN)) as (server, client):
        await ask(client)
        with socket.socket(fileno=os.dup(server.files[0])) as end:
            end.shutdown(socket.SHUT_WR)
        assert await ask(client) == (200, b"ok")
    assert (server.connections, len(server.requests)) == (2, 2)


async def test_bytes_that_nobody_asked_for_end_a_connection():
    async with scripted(says(PLAIN)) as (server, client):
        await ask(client)
        (connection,) = client.pool.connections
        connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
        assert await ask(client) == (200, b"ok")
    assert server.connections == 2


async def test_whoever_takes_may_hold_the_engine_back():
    sent, large = 0, b"x" * 65_536

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: int) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (400 * len(large)))
        for _piece in range(400):
            writer.write(large)
            await writer.drain()
            sent += len(large)

    async with scripted(script) as (_, client):
        response = await client.send("/x", b"", {})
        taken = 0

        def take(data: bytes) -> bool:
            nonlocal taken
            taken += len(data)
            return taken > 400_000

        relaying = asyncio.create_task(response.relay(take))
        before = (-1, -1)
        while before != (sent, taken):
            before = (sent, taken)
            for _turn in range(200):
                await asyncio.sleep(0)
        assert taken < sent < 300 * len(large)
        while not relaying.done():
            response.resume()
            await asyncio.sleep(0)
        await relaying
    assert taken == 400 * len(large)


async def test_what_the_taker_raises_comes_out_and_drops_the_connection():
    async with scripted(says(CHUNKED[:-20])) as (_, client):
        response = await client.send("/x", b"", {})

        def take(data: bytes) -> bool:
            raise LookupError(data.decode())

        with pytest.raises(LookupError, match="hello"):
            await response.relay(take)
        await response.close()
        for _turn in range(10):
            await asyncio.sleep(0)
        assert not client.pool.connections


async def test_a_header_cannot_break_out_of_its_line():
    async with scripted(says(PLAIN)) as (server, client):
        with pytest.raises(EngineError, match="line break"):
            await client.send("/x", b"", {"tracestate": "a\r\nx: y"})
    assert server.requests == []


async def test_an_engine_that_cannot_be_reached():
    async with scripted(says(PLAIN)) as (server, client):
        url = server.url
        await ask(client)
    for unreachable in (url, url.replace("http:", "https:"), "http://name.invalid:1"):
        client = EngineClient(name="e1", url=unreachable)
        with pytest.raises(EngineUnavailable, match="engine e1") as told:
            await client.get("/x")
        host, _, port = client.pool.authority.partition(":")
        text = str(told.value).removeprefix("engine e1")
        assert host not in text, "clients see this text"
        assert port not in text
        await client.close()


def in_virtual_time(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    run_virtual(main)


def test_a_connection_that_idled_is_not_used_again():
    async def main(loop: VirtualLoop) -> None:
        async with scripted(says(PLAIN)) as (server, client):
            for pause_s, connections in ((0.0, 1), (3.5, 1), (4.5, 2)):
                await asyncio.sleep(pause_s)
                await ask(client)
                assert server.connections == connections
            await asyncio.sleep(6.0)
            assert not client.pool.connections, "and it is closed"

    in_virtual_time(main)


def test_silence_before_the_head_is_not_counted_and_after_it_is():
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: int) -> None:
        await asyncio.sleep(50.0)
        writer.write(PLAIN[:-1])

    async def main(loop: VirtualLoop) -> None:
        async with scripted(script, idle_timeout_s=10.0) as (_, client):
            begun_s = loop.time()
            response = await client.send("/x", b"", {})
            assert loop.time() - begun_s == pytest.approx(50.0)
            await asyncio.sleep(30.0)
            with pytest.raises(EngineSilent, match="silent for 10 s"):
                assert [chunk async for chunk in response.chunks()] == [b"o"]
            assert 90.0 <= loop.time() - begun_s <= 93.0

    in_virtual_time(main)


@pytest.mark.parametrize(("computes", "ends_s"), [(False, 110.0), (True, 140.0)])
def test_a_streams_silence_counts_once_its_answer_has_begun_and_nothing_is_computed(computes: bool, ends_s: float):
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: int) -> None:
        writer.write(PLAIN[:-2])
        await asyncio.sleep(100.0)
        writer.write(PLAIN[-2:-1])

    async def main(loop: VirtualLoop) -> None:
        async with scripted(script, idle_timeout_s=10.0) as (_, client):
            begun_s = loop.time()
            response = await client.send("/x", b"", {})
            for after_s in (105, 113, 121, 130) if computes else ():
                loop.call_at(begun_s + after_s, client.pool.computes)

            def take(_: bytes) -> bool:
                response.begun()
                return True

            with pytest.raises(EngineSilent, match="silent for 10 s"):
                await response.relay(take)
            assert ends_s <= loop.time() - begun_s <= ends_s + 3.0

    in_virtual_time(main)


def test_a_control_call_is_bounded_in_time():
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: int) -> None:
        await asyncio.sleep(1000.0)

    async def main(loop: VirtualLoop) -> None:
        async with scripted(script) as (_, client):
            begun_s = loop.time()
            with pytest.raises(EngineUnavailable, match="no answer in time"):
                await client.get("/metrics")
            assert loop.time() - begun_s == pytest.approx(5.0)

    in_virtual_time(main)
