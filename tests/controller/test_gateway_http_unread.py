"""Clients that do not read their answers, or read them slowly: what they may hold, and for how long."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hmas_lab.virtual_loop import VirtualLoop, run_virtual
from http_kit import HOST, Client, Serving, echo, serving
from typing_kit import known

from hmas.controller.gateway.http import server_state
from hmas.controller.gateway.http.connection import DRAIN_LOOK_S, DRAIN_S, WRITE_BUFFER_BYTES
from hmas.controller.gateway.http.server import HttpServer
from hmas.controller.gateway.http.server_state import CROWDED_S
from hmas.controller.gateway.http.transport import HttpRequest, Responder

PIECE = b"x" * 65_536
LARGE = 16 << 20
"""More than the kernel and the gateway take together."""


def in_virtual_time(scenario: Callable[[VirtualLoop, Serving], Coroutine[Any, Any, None]], handler: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with serving(handler) as http:
            await scenario(loop, http)

    run_virtual(main)


class Streamer:
    """Streams `LARGE` bytes to whoever asks for /large, as fast as the client takes them, and echoes anything else."""

    def __init__(self) -> None:
        self.left = 0
        self.waits = 0
        self.buffered = 0

    async def handle(self, request: HttpRequest, out: Responder) -> None:
        if request.path != "/large":
            await echo(request, out)
            return
        out.start(200, {})
        try:
            for _ in range(LARGE // len(PIECE)):
                if not out.write(PIECE):
                    self.waits += 1
                    await out.drain()
        except asyncio.CancelledError:
            self.left += 1
            raise
        out.finish()


def ask(path: bytes, *fields: bytes) -> bytes:
    return b"GET /%b HTTP/1.1\r\n%b%b\r\n" % (path, HOST, b"".join(field + b"\r\n" for field in fields))


async def gone_after_s(loop: VirtualLoop, http: Serving, *, most_s: float = 700.0) -> float:
    begun_s = loop.time()
    while http.server.state.connections and loop.time() - begun_s < most_s:  # noqa: ASYNC110 - virtual time takes none
        await asyncio.sleep(1.0)
    return loop.time() - begun_s


@pytest.mark.parametrize("fields", [(), (b"connection: close",)], ids=["keep-alive", "close"])
def test_a_stream_that_is_not_read_is_given_up(fields: tuple[bytes, ...]):
    streamer = Streamer()

    async def scenario(loop: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            client.send(ask(b"large", *fields))
            assert DRAIN_S - 1.0 <= await gone_after_s(loop, http) <= DRAIN_S + DRAIN_LOOK_S + 2.0
        await asyncio.sleep(1.0)
        assert (streamer.left, streamer.waits) == (1, 1)

    in_virtual_time(scenario, streamer.handle)


@pytest.mark.parametrize("fields", [(), (b"connection: close",)], ids=["keep-alive", "close"])
def test_a_whole_answer_that_is_not_read_is_given_up(fields: tuple[bytes, ...]):
    """The answer has been handed over: no handler runs any more, and the connection would be closed or wait for another request."""

    async def handler(_: HttpRequest, out: Responder) -> None:
        out.send(200, {}, b"x" * LARGE)

    async def scenario(loop: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            client.send(ask(b"whole", *fields))
            assert DRAIN_S - 1.0 <= await gone_after_s(loop, http) <= DRAIN_S + DRAIN_LOOK_S + 2.0

    in_virtual_time(scenario, handler)


def test_a_client_that_reads_slowly_but_reads_is_kept():
    streamer = Streamer()

    async def scenario(loop: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            client.send(ask(b"large"))
            begun_s, size = loop.time(), 0
            while size < LARGE:
                await asyncio.sleep(10.0)
                for _ in range(32):
                    size += len(await client.reader.read(len(PIECE)))
            assert loop.time() - begun_s > 2 * DRAIN_S
            assert not streamer.left

    in_virtual_time(scenario, streamer.handle)


@pytest.mark.parametrize(("size", "is_kept"), [(1 << 16, False), (1 << 17, True)])
def test_a_client_has_to_take_a_64th_of_the_rest_in_30_s(size: int, is_kept: bool):
    """A 64th is 256 KiB at first. The system's buffers are small: it empties large ones in steps of a megabyte."""

    async def handler(_: HttpRequest, out: Responder) -> None:
        out.send(200, {}, b"x" * LARGE)

    async def scenario(_: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            (connection,) = http.server.state.connections
            known(connection.transport).get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.send(ask(b"whole"))
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                for _look in range(12):
                    await asyncio.sleep(10.0)
                    await client.reader.readexactly(size)
            assert bool(http.server.state.connections) is is_kept

    in_virtual_time(scenario, handler)


def test_requests_behind_an_unread_answer_wait_until_it_is_read():
    asked = 40

    async def handler(request: HttpRequest, out: Responder) -> None:
        out.send(200, {}, b"x" * (1 << 20))

    async def scenario(loop: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            client.send(b"".join(ask(b"%d" % number) for number in range(asked)))
            await asyncio.sleep(1.0)
            begun = len(http.seen)
            assert 1 <= begun < asked, "no answer is made for a client that does not take the one before"
            await asyncio.sleep(DRAIN_S / 2)
            client.send(ask(b"last"))
            await asyncio.sleep(1.0)
            assert len(http.seen) == begun
            for _ in range(asked + 1):
                assert len((await client.answer()).body) == 1 << 20
            assert [path for _, path, _ in http.seen][-2:] == [f"/{asked - 1}", "/last"]
            assert len(http.server.state.connections) == 1

    in_virtual_time(scenario, handler)


def test_requests_behind_an_unread_answer_are_served_to_a_client_that_has_done_sending():
    async def handler(_: HttpRequest, out: Responder) -> None:
        out.send(200, {}, b"x" * (1 << 20))

    async def scenario(_: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            client.send(b"".join(ask(b"%d" % number) for number in range(40)))
            await asyncio.sleep(1.0)
            client.writer.write_eof()
            await asyncio.sleep(1.0)
            for _number in range(40):
                assert len((await client.answer()).body) == 1 << 20
            assert await client.closed()

    in_virtual_time(scenario, handler)


def test_clients_that_do_not_read_are_given_up_sooner_where_too_much_waits_for_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_state, "UNREAD_BYTES_MOST", 2 * LARGE)
    closed: list[int] = []

    async def handler(_: HttpRequest, out: Responder) -> None:
        out.send(200, {}, b"x" * LARGE)

    async def scenario(loop: VirtualLoop, http: Serving) -> None:
        http.server.state.on_unread = lambda: closed.append(1)
        async with http.client(limit=2048) as reads, http.client(limit=2048) as rests, http.client(limit=2048) as rests_too:
            begun_s = loop.time()
            for client in (reads, rests, rests_too):
                client.send(ask(b"whole"))
            while not closed:
                await asyncio.sleep(1.0)
                await reads.reader.read(1 << 19)
            assert CROWDED_S - 1.0 <= loop.time() - begun_s <= CROWDED_S + 3.0
            await asyncio.sleep(CROWDED_S)
            assert len(http.server.state.connections) == 2, "what is left is less than the bound"
            assert len(await reads.reader.readexactly(LARGE // 2)) == LARGE // 2
            assert len(closed) == 1

    in_virtual_time(scenario, handler)


def test_a_client_that_has_sent_too_much_has_time_to_take_its_answer():
    async def handler(_: HttpRequest, out: Responder) -> None:
        await asyncio.sleep(1.0)
        out.send(200, {}, b"x" * LARGE)

    async def scenario(_: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            client.send(ask(b"whole"))
            client.send(PIECE * 16)
            await asyncio.sleep(DRAIN_S / 2)
            assert len((await client.answer()).body) == LARGE
            assert await client.closed()

    in_virtual_time(scenario, handler)


def test_a_connection_that_was_read_late_is_kept_for_another_request():
    async def handler(_: HttpRequest, out: Responder) -> None:
        out.send(200, {}, b"x" * LARGE)

    async def scenario(_: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            for wait_s in (DRAIN_S / 2, 40.0):
                client.send(ask(b"a"))
                await asyncio.sleep(DRAIN_S / 2)
                assert len((await client.answer()).body) == LARGE
                await asyncio.sleep(wait_s)
            assert len(http.server.state.connections) == 1

    in_virtual_time(scenario, handler)


async def test_a_stream_is_held_back_when_its_buffer_is_full():
    streamer = Streamer()

    async def scenario(client: Client, http: Serving) -> None:
        client.send(ask(b"large"))
        async with asyncio.timeout(10):
            while not streamer.waits:  # noqa: ASYNC110 - what is waited for has no event of its own
                await asyncio.sleep(0.01)
        (connection,) = http.server.state.connections
        assert connection.transport is not None
        assert WRITE_BUFFER_BYTES - len(PIECE) < connection.transport.get_write_buffer_size() < WRITE_BUFFER_BYTES + 2 * len(PIECE)

    async with serving(streamer.handle) as http, http.client(limit=2048) as client:
        await scenario(client, http)


@pytest.mark.parametrize("end", [HttpServer.finish, lambda server: server.close(5.0)], ids=["finish", "close"])
async def test_an_answer_that_is_being_read_is_sent_to_its_end(end: Callable[[HttpServer], Coroutine[Any, Any, None]]):
    async def handler(_: HttpRequest, out: Responder) -> None:
        out.send(200, {}, b"x" * LARGE)

    async with serving(handler) as http, http.client(limit=2048) as client:
        client.send(ask(b"whole"))
        assert (await client.answer(head_only=True)).headers["content-length"] == str(LARGE)
        ending = asyncio.create_task(end(http.server))
        await asyncio.sleep(0.05)
        assert not ending.done(), "most of the answer still waits for the client"
        assert await client.reader.readexactly(LARGE) == b"x" * LARGE
        await asyncio.wait_for(ending, 2)


def test_a_client_that_does_not_read_gets_no_longer_than_the_grace():
    async def handler(_: HttpRequest, out: Responder) -> None:
        out.send(200, {}, b"x" * LARGE)

    async def scenario(loop: VirtualLoop, http: Serving) -> None:
        async with http.client(limit=2048) as client:
            client.send(ask(b"whole"))
            await asyncio.sleep(1.0)
            begun_s = loop.time()
            await http.server.close(5.0)
            assert 4.9 < loop.time() - begun_s < 6.0

    in_virtual_time(scenario, handler)
