"""What a client sends is bounded: in the memory that it takes, in the time for which it holds the event loop, in how it can be read."""

import asyncio
import gc
import time
from contextlib import AsyncExitStack

import pytest
from http_kit import HOST, Serving, echo, post, serving, until

from hmas.controller.gateway.errors import HttpError
from hmas.controller.gateway.http.body import SMALL_BODY_BYTES
from hmas.controller.gateway.http.chunked import MAX_SHORT_CHUNKS, SHORT_CHUNK_BYTES, ChunkDecoder
from hmas.controller.gateway.http.connection import MAX_AHEAD_BYTES
from hmas.controller.gateway.http.exchange import ClientExchange
from hmas.controller.gateway.http.head import RequestHead
from hmas.controller.gateway.http.transport import HttpRequest, Responder

MIB = 1 << 20
CHUNKED = b"POST /a HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
READ_BYTES = 256_000
"""Most that uvloop hands over at once."""


def upload(size: int) -> bytes:
    """The head of a body and all of the body but its last byte."""
    return b"POST /a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (HOST, size) + b"x" * (size - 1)


async def test_bytes_of_all_bodies_are_bounded_and_small_ones_keep_a_part():
    async with serving(max_body_bytes=4 * MIB, max_body_bytes_total=16 * MIB) as http, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(http.client()) for _ in range(3)]
        for client in clients:
            client.send(upload(4 * MIB))
        await until_held(http, 3 * (4 * MIB - 1))
        async with http.client() as fourth:
            fourth.send(upload(MIB)[:-SMALL_BODY_BYTES])
            refused = await fourth.answer()
            assert await fourth.closed()
        async with http.client() as small:
            small.send(post(b"y" * SMALL_BODY_BYTES))
            assert (await small.answer()).status == 200
        clients[0].send(b"x")
        assert (await clients[0].answer()).status == 200
        clients[1].writer.transport.abort()
        await until_held(http, 4 * MIB - 1)
        async with http.client() as fifth:
            fifth.send(post(b"z" * 4 * MIB))
            assert (await fifth.answer()).status == 200
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "too_many_body_bytes", "1")
    assert refused.headers["connection"] == "close"
    await until_held(http, 0)


async def test_a_body_counts_until_its_request_ends():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: HttpRequest, out: Responder) -> None:
        await request.body()
        begun.set()
        await ended.wait()
        await echo(request, out)

    async with serving(handler) as http, http.client() as client:
        client.send(post(b"x" * 1000))
        await begun.wait()
        assert http.server.state.body_memory.held == 1000
        ended.set()
        await client.answer()
        await until_held(http, 0)
        client.send(CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n5\r\nhello!")
        assert (await client.answer()).status == 400
        await until_held(http, 0)


async def test_one_body_of_the_greatest_size_always_fits():
    async with serving(max_body_bytes=4 * MIB, max_body_bytes_total=1024) as http, http.client() as client:
        client.send(post(b"x" * 4 * MIB))
        assert (await client.answer()).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("wire", [upload(16 * MIB), CHUNKED + b"%x\r\n" % (16 * MIB) + b"x" * (16 * MIB - 1)], ids=["sized", "chunked"])
async def test_uploads_that_are_reset_leave_nothing(wire: bytes):
    async with serving(max_body_bytes=16 * MIB, max_body_bytes_total=256 * MIB) as http:
        gc.collect()
        gc.disable()
        try:
            for _ in range(8):
                async with http.client() as client:
                    client.send(wire)
                    await until_held(http, 16 * MIB - 1)
                await until(lambda: not http.server.state.connections)
                assert http.server.state.body_memory.held == 0
            await asyncio.sleep(0.1)
            assert not [one for one in gc.get_objects() if isinstance(one, ClientExchange)]
        finally:
            gc.enable()


async def until_held(http: Serving, size: int) -> None:
    async with asyncio.timeout(10):
        while http.server.state.body_memory.held != size:  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)


def chunks(size: int, wire_bytes: int) -> bytes:
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    return chunk * (wire_bytes // len(chunk))


@pytest.mark.parametrize("size", [1, SHORT_CHUNK_BYTES - 1, SHORT_CHUNK_BYTES, 1000])
def test_no_read_of_a_chunked_body_holds_the_loop_for_long(size: int):
    decoder = ChunkDecoder()
    wire, longest_s = chunks(size, 12_000_000), 0.0
    refused = None
    for at in range(0, len(wire), READ_BYTES):
        piece = wire[at : at + READ_BYTES]
        begun_s = time.thread_time()
        try:
            decoder.feed(piece)
        except HttpError as error:
            refused = error
        longest_s = max(longest_s, time.thread_time() - begun_s)
        if refused is not None:
            break
    assert longest_s < 0.05
    assert (refused is not None) == (size < SHORT_CHUNK_BYTES)
    if refused is not None:
        assert refused.status == 400
        assert f"more than {MAX_SHORT_CHUNKS} chunks shorter than {SHORT_CHUNK_BYTES} bytes" in str(refused)


async def test_a_flood_of_one_byte_chunks_is_refused_and_others_are_served_meanwhile():
    async with serving(max_body_bytes=16 * MIB) as http, http.client() as flood, http.client() as other:
        flood.send(CHUNKED + chunks(1, 12_000_000))
        other.send(post(b"other"))
        assert (await other.answer()).body == b"POST /a other"
        answer = await flood.answer()
        assert (answer.status, answer.code) == (400, "malformed_http")
        assert http.server.state.body_memory.held == 0
        other.send(CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
        assert (await other.answer()).body == b"POST /a " + b"x" * 5000


async def test_the_trailer_of_a_chunked_body_is_bounded_in_any_number_of_pieces():
    async with serving() as http, http.client() as client:
        client.send(CHUNKED + b"0\r\n")
        for _ in range(20):
            client.send(b"a: b\r\n" * 100)
            await client.writer.drain()
            await asyncio.sleep(0)
        answer = await client.answer()
    assert answer.status == 400


def test_fields_that_come_more_than_once_are_lists():
    head = RequestHead(
        b"GET /a HTTP/1.1\r\nhost: x\r\nAccept: a\r\nCookie: a=b\r\nconnection: keep-alive\r\naccept:  b, c \r\naccept: d\r\n"
        b"cookie: c=d\r\nConnection: close\r\nx-b: \r\n\r\n"
    )
    assert head.headers == {"host": "x", "accept": "a, b, c, d", "cookie": "a=b; c=d", "connection": "keep-alive, close", "x-b": ""}
    assert not head.keep_alive


async def test_a_client_that_sends_on_behind_its_request_is_bounded_and_is_noticed_when_it_leaves():
    begun, left = asyncio.Event(), asyncio.Event()

    async def handler(request: HttpRequest, _: Responder) -> None:
        await request.body()
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            left.set()
            raise

    async with serving(handler) as http, http.client() as client:
        client.send(post(b"x"))
        await begun.wait()
        (connection,) = http.server.state.connections
        for _ in range(16):
            client.send(post(b"y" * MIB))
            await asyncio.wait_for(client.writer.drain(), 5)
        assert len(connection._ahead) <= MAX_AHEAD_BYTES + READ_BYTES  # noqa: SLF001 - nothing else tells what is kept
        client.writer.close()
        await asyncio.wait_for(left.wait(), 5)


async def test_an_answer_reaches_the_client_that_has_sent_too_much_behind_its_request():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: HttpRequest, out: Responder) -> None:
        begun.set()
        await ended.wait()
        await echo(request, out)

    async with serving(handler) as http, http.client() as client:
        client.send(post(b"x"))
        await begun.wait()
        client.send(post(b"y" * MIB) * 8)
        await asyncio.wait_for(client.writer.drain(), 5)
        ended.set()
        answer = await client.answer()
        client.send(post(b"z" * MIB))
        assert (answer.body, answer.headers["connection"]) == (b"POST /a x", "close")
        assert await client.closed()
        assert [body for *_, body in http.seen] == [b"x"]
