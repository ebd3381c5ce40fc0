"""Connections as clients may use them: one request after the other, in pieces, ahead of time, half closed, slow."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import uvloop
from hmas_lab.virtual_loop import VirtualLoop, run_virtual
from http_kit import HOST, Client, Serving, echo, post, serving, until

from hmas.controller.gateway.http.answer import CommonHeaders, answer_head
from hmas.controller.gateway.http.body import BodyMemory, BodyReader
from hmas.controller.gateway.http.connection import KEEPALIVE_S
from hmas.controller.gateway.http.head import RequestHead, target_of
from hmas.controller.gateway.http.transport import HttpRequest, Responder

CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
WIRE = b"5;ext=1\r\nhello\r\n1\r\n \r\nA\r\nwide world\r\n0\r\ntrailer: x\r\n\r\n"
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_on(loop: str, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_three_requests_at_once_are_answered_in_their_order(loop: str):
    async def scenario() -> None:
        held = asyncio.Event()

        async def handler(request: HttpRequest, out: Responder) -> None:
            if request.path == "/first":
                await held.wait()
            await echo(request, out)

        async with serving(handler) as http, http.client() as client:
            client.send(post(b"1", path=b"/first") + CHUNKED + WIRE + b"GET /third HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: http.server.state.connections)
            assert http.seen == []
            held.set()
            bodies = [(await client.answer()).body for _ in range(3)]
            assert bodies == [b"POST /first 1", b"POST /a hello wide world", b"GET /third "]
            assert len(http.server.state.connections) == 1

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_slow_reader_holds_back_its_own_stream_alone(loop: str):
    piece, pieces = b"x" * 65_536, 800

    async def scenario() -> None:
        written = 0

        async def handler(request: HttpRequest, out: Responder) -> None:
            nonlocal written
            if request.path != "/large":
                await echo(request, out)
                return
            out.start(200, {})
            for _ in range(pieces):
                written += len(piece)
                if not out.write(piece):
                    await out.drain()
            out.finish()

        async with serving(handler) as http, http.client(limit=1) as slow, http.client() as quick:
            slow.send(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await until(lambda: written)
            for _ in range(50):
                quick.send(post(b"quick"))
                assert (await quick.answer()).body == b"POST /a quick"
            held_at = written
            assert held_at < pieces * len(piece) // 2, "what the client does not take is not made"
            size = 0
            while data := await slow.reader.read(1 << 20):
                size += len(data)
            assert written == pieces * len(piece) == 50 << 20 < size
            assert size < written + pieces * 16 + 300

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_before_the_whole_body_reaches_a_client_that_goes_on_sending(loop: str):
    async def refuse(_: HttpRequest, out: Responder) -> None:
        out.send(404, {}, b"no")

    async def scenario() -> None:
        async with serving(refuse) as http, http.client() as client:
            client.send(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n")
            client.send(b"x" * 300_000)
            answer = await client.answer()
            client.send(b"x" * 300_000)
            assert (answer.status, answer.body, answer.headers["connection"]) == (404, b"no", "close")
            assert await client.closed()

    run_on(loop, scenario)


def gone(http: Serving, ended: list[str], count: int) -> bool:
    return not http.server.state.connections and len(ended) == count


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_leaves_ends_its_handler(loop: str):
    async def scenario() -> None:
        ended: list[str] = []
        ways = ((b"/abort", "abort"), (b"/close", "close"), (b"/half", "half"), (b"/stream", "close"))

        async def handler(request: HttpRequest, out: Responder) -> None:
            if request.path == "/stream":
                out.start(200, {})
                out.write(b"x")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(request.path)
                raise

        async with serving(handler) as http:
            for number, (path, leave) in enumerate(ways):
                async with http.client() as client:
                    client.send(post(b"x", path=path))
                    await until(lambda: http.server.state.connections)
                    if path == b"/stream":
                        await client.reader.readuntil(b"x\r\n")
                    if leave == "abort":
                        client.writer.transport.abort()
                    elif leave == "close":
                        client.writer.close()
                    else:
                        client.writer.write_eof()
                    await until(partial(gone, http, ended, number + 1))
        assert ended == ["/abort", "/close", "/half", "/stream"]

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_without_a_body_are_answered_to_a_client_that_has_done_sending(loop: str):
    async def scenario() -> None:
        async with serving() as http, http.client() as client:
            client.send(b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\nHEAD /2 HTTP/1.1\r\nhost: x\r\n\r\nGET /3 HTTP/1.1\r\nhost: x\r\n\r\n")
            client.writer.write_eof()
            assert (await client.answer()).body == b"GET /1 "
            assert (await client.answer(head_only=True)).headers["content-length"] == "8"
            assert (await client.answer()).body == b"GET /3 "
            assert await client.closed()

    run_on(loop, scenario)


async def test_a_chunked_body_is_the_same_however_it_is_cut():
    head = RequestHead(CHUNKED)
    for first in range(len(WIRE)):
        for second in (first, (first + len(WIRE)) // 2):
            reader = BodyReader(head, 1000, BodyMemory(1000, 1000))
            for piece in (WIRE[:first], WIRE[first:second], WIRE[second:-1]):
                assert not reader.complete
                if piece:
                    reader.feed(piece)
            reader.feed(WIRE[-1:] + b"GET /")
            assert (reader.complete, reader.whole(), reader.rest) == (True, b"hello wide world", b"GET /")


async def test_a_request_that_comes_byte_by_byte():
    async with serving() as http, http.client() as client:
        for wire in (CHUNKED + WIRE, b"\r\n" + post(b"plain")):
            for at in range(len(wire)):
                client.send(wire[at : at + 1])
                await asyncio.sleep(0)
            await client.answer()
    assert [body for _, _, body in http.seen] == [b"hello wide world", b"plain"]


async def test_a_connection_is_kept_as_long_as_both_want_it():
    async def streamed(request: HttpRequest, out: Responder) -> None:
        out.start(200, {"content-type": "text/plain"})
        out.write(request.path.encode())
        out.finish(b"!")

    async with serving(streamed) as http:
        async with http.client() as client:
            for number in range(3):
                client.send(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number)
                answer = await client.answer()
                assert answer.body == b"/%d!" % number
                assert "connection" not in answer.headers
            assert len(http.server.state.connections) == 1
            client.send(b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: Close\r\n\r\n")
            assert (await client.answer()).headers["connection"] == "close"
            assert await client.closed()
        async with http.client() as client:
            client.send(b"GET /old HTTP/1.0\r\n\r\n")
            answer = await client.answer()
            assert (answer.body, answer.headers["connection"]) == (b"/old!", "close")
            assert "transfer-encoding" not in answer.headers
            assert await client.closed()


async def test_a_client_is_asked_for_the_body_it_announces():
    async with serving() as http, http.client() as client:
        client.send(b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-Continue\r\ncontent-length: 3\r\n\r\n")
        assert (await client.answer()).status == 100
        client.send(b"abc")
        assert (await client.answer()).body == b"POST /a abc"
        client.send(b"POST /b HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nxyz")
        assert (await client.answer()).body == b"POST /b xyz", "it did not wait, so it is not asked"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the platform has no such limit")
async def test_the_kernel_watches_for_clients_whose_host_is_down():
    async with serving() as http, http.client():
        await until(lambda: http.server.state.connections)
        (connection,) = http.server.state.connections
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


class Held:
    """Answers nothing before `ended` is set."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = asyncio.Event()

    async def handle(self, request: HttpRequest, out: Responder) -> None:
        self.begun += 1
        await self.ended.wait()
        await echo(request, out)


async def test_connections_beyond_the_limit_are_told_so_where_none_is_idle():
    held = Held()
    async with serving(held.handle, max_connections=2) as http, http.client() as first, http.client() as second:
        first.send(post(b"1"))
        second.send(post(b"2"))
        await until(lambda: held.begun == 2)
        async with http.client() as third:
            answer = await third.answer()
            assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "too_many_connections", "1")
            assert await third.closed()
        held.ended.set()
        assert (await first.answer()).status == (await second.answer()).status == 200
        first.writer.close()
        await until(lambda: len(http.server.state.connections) == 1)
        async with http.client() as fourth:
            fourth.send(post(b"4"))
            assert (await fourth.answer()).status == 200


async def test_the_connection_that_is_idle_longest_makes_room_for_a_new_one():
    held = Held()
    async with serving(held.handle, max_connections=4) as http, AsyncExitStack() as stack:
        idle = http.server.state.idle
        clients: list[Client] = []

        async def asks(client: Client) -> None:
            begun = held.begun
            client.send(post(b"x"))
            await until(lambda: held.begun > begun)

        for _ in range(4):
            clients.append(await stack.enter_async_context(http.client()))
            await until(lambda: len(idle) == len(clients))
        begins, busy, silent, served = clients
        (first, *_) = idle
        begins.send(post(b"a request in two pieces")[:9])
        await until(lambda: next(reversed(idle)) is first)
        await asks(busy)
        await asks(served)
        for gone in (silent, begins):
            fresh = await stack.enter_async_context(http.client())
            assert await asyncio.wait_for(gone.closed(), 5)
            await asks(fresh)
        held.ended.set()
        assert (await busy.answer()).status == (await served.answer()).status == 200


async def test_the_server_ends_with_those_who_are_being_served():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: HttpRequest, out: Responder) -> None:
        begun.set()
        await ended.wait()
        await echo(request, out)

    async with serving(handler) as http, http.client() as idle, http.client() as busy:
        busy.send(post(b"x"))
        await begun.wait()
        closing = asyncio.create_task(http.server.close(5.0))
        assert await idle.closed()
        ended.set()
        assert (await busy.answer()).body == b"POST /a x"
        assert await busy.closed()
        await closing


def in_virtual_time(scenario: Callable[[VirtualLoop, Serving], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with serving(**options) as http:
            await scenario(loop, http)

    run_virtual(main)


@pytest.mark.parametrize(
    ("data", "code", "after_s"),
    [
        (b"", None, 75.0),
        (post(b"x"), None, 75.0),
        (b"GET / HTTP/1.1\r\nhost:", "head_timeout", 30.0),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc", "body_timeout", 60.0),
    ],
    ids=["nothing", "no second request", "half a head", "half a body"],
)
def test_a_client_that_dawdles_is_let_go(data: bytes, code: str | None, after_s: float):
    async def scenario(loop: VirtualLoop, http: Serving) -> None:
        async with http.client() as client:
            begun_s = loop.time()
            client.send(data)
            if data.endswith(b"x"):
                assert (await client.answer()).status == 200
            elif code:
                answer = await client.answer()
                assert (answer.status, answer.code) == (408, code)
            assert await client.closed()
            assert after_s - 1.0 <= loop.time() - begun_s <= after_s + 4.0

    in_virtual_time(scenario)


def test_a_client_that_never_reads_is_let_go():
    async def scenario(loop: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=1) as client:
            client.send(post(b"x" * (30 << 20)))
            await client.writer.drain()
            begun_s = loop.time()
            while http.server.state.connections:  # noqa: ASYNC110 - virtual time takes none
                await asyncio.sleep(1.0)
            assert loop.time() - begun_s < 3 * KEEPALIVE_S

    in_virtual_time(scenario, max_body_bytes=64 << 20)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/models?x=/1", "/v1/models"),
        (b"/a%20b", "/a b"),
        (b"http://host:1/v1/models?x", "/v1/models"),
        (b"http://host", "/"),
        (b"*", "*"),
        (b"host:443", "host:443"),
        (b"//evil/x", "//evil/x"),
    ],
)
def test_targets_in_every_form(target: bytes, path: str):
    assert target_of(target)[0] == path


@pytest.mark.parametrize(
    ("target", "query"),
    [(b"/a", ""), (b"/a?", ""), (b"/a?x=%2F&y=1?2", "x=%2F&y=1?2"), (b"http://host:1/a?x=1", "x=1"), (b"http://host", "")],
)
def test_queries_are_kept_as_they_came(target: bytes, query: str):
    assert target_of(target)[1] == query


def test_a_header_cannot_break_out_of_its_line():
    with pytest.raises(ValueError, match="line break"):
        answer_head(200, {"x-a": "b\r\nset-cookie: c"}, "", CommonHeaders())
    assert b"\r\nx-a: b\r\n" in answer_head(200, {"x-a": "b"}, "", CommonHeaders())
    assert HOST.endswith(b"\r\n")
