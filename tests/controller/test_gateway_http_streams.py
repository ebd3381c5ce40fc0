"""Streams from end to end: an engine is slowed to its client's pace, and left when its client leaves, which leaves nothing in memory."""

import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from bad_engines import metric
from gateway_kit import MODEL, Rig, chat, eventually, running
from http_kit import Client

from hmas.controller.config.schema import EngineConfig, SchedulerConfig
from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.http import server_state
from hmas.controller.gateway.http.exchange import ClientExchange
from hmas.controller.gateway.requests.active_request import ActiveRequest, Ending
from hmas.controller.gateway.requests.manager import RequestManager

pytestmark = pytest.mark.slow

EVENT = orjson.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 65_400}, "finish_reason": None}]})
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
EVENTS = 800
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine:
    """Answers `large` with 50 MB of events, `medium` with as many as a test has set, `endless` with one event
    and then nothing, `silent` with nothing, anything else with one event."""

    def __init__(self) -> None:
        self.sent = 0
        self.left = 0
        self.medium = 1
        self.large_done = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next((int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")), 0)
                await self.answer(head, await reader.readexactly(length), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left += 1
        finally:
            writer.transport.abort()

    async def answer(self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"GET"):
            listed = orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(listed), listed))
            return
        if b"silent" in body[-200:]:
            await reader.readexactly(1)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        large = b"large" in body[-200:]
        for _ in range(EVENTS if large else self.medium if b"medium" in body[-200:] else 1):
            writer.write(chunk(b"data: " + EVENT + b"\n\n"))
            await writer.drain()
            if large:
                self.sent += len(EVENT)
        if b"endless" in body[-200:]:
            await reader.readexactly(1)
        writer.write(chunk(LAST) + b"0\r\n\r\n")
        self.large_done = self.large_done or large


def holds(manager: RequestManager, number: int) -> bool:
    return len(manager.active) == number


@asynccontextmanager
async def streaming(folder: Path, **parts: Any) -> AsyncIterator[tuple[Engine, Rig]]:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with running(folder, engines_config=[EngineConfig(name="e", url=url, kind="openai")], **parts) as rig:
            yield engine, rig
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def raw(rig: Rig, text: str) -> AsyncIterator[Client]:
    """A client whose request is on its way, and that reads only when asked to."""
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    body = orjson.dumps(chat(text))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def test_a_slow_reader_slows_its_own_engine_stream_alone(tmp_path: Path):
    async with streaming(tmp_path) as (engine, rig), raw(rig, "large") as slow:
        await eventually(lambda: engine.sent)
        for number in range(20):
            assert (await rig.post(chat(f"quick {number}"))).status == 200
        assert not engine.large_done
        assert engine.sent < EVENTS * len(EVENT) // 2
        tail, size = b"", 0
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await slow.reader.read(1 << 20)
            tail, size = (tail + data)[-16:], size + len(data)
        assert engine.sent == EVENTS * len(EVENT) < size
        completions = await rig.completions()
        assert rig.balanced()
    assert max(completion.output_tokens for completion in completions) == EVENTS


@pytest.mark.parametrize("half", [True, False])
async def test_an_engine_is_left_when_its_client_leaves(tmp_path: Path, half: bool):
    async with streaming(tmp_path) as (engine, rig), raw(rig, "endless") as client:
        await client.reader.read(1)
        if half:
            client.writer.write_eof()
        else:
            client.writer.close()
        await eventually(lambda: engine.left == 1)
        await eventually(lambda: not rig.gateway.manager.active)
        assert [completion.outcome for completion in await rig.completions()] == ["cancelled"]


def slow_socket() -> socket.socket:
    """A client's socket that takes as little as possible before it is read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    return sock


async def kernel_bytes() -> int:
    """What the kernel takes of an answer that nobody reads, at both ends: some megabytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener, slow_socket() as client:
        client.connect(listener.getsockname())
        served, _ = listener.accept()
        with served:
            served.setblocking(False)
            taken = idle = 0
            while idle < 50:
                try:
                    taken += served.send(b"x" * 65_536)
                    idle = 0
                except BlockingIOError:
                    idle += 1
                    await asyncio.sleep(0.01)
    return taken


async def unread(rig: Rig, text: str) -> socket.socket:
    """A client that has sent a request and does not read."""
    sock = slow_socket()
    sock.setblocking(False)
    host, port = rig.url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, (host, int(port)))
    body = orjson.dumps(chat(text))
    await loop.sock_sendall(sock, HEAD % len(body) + body)
    return sock


async def test_slots_are_free_when_the_engine_is_done_though_no_client_reads(tmp_path: Path):
    waiting = 260_000
    async with streaming(tmp_path, scheduler=SchedulerConfig(policy="fcfs", tick_s=0.02, n_run=2)) as (engine, rig):
        engine.medium = (await kernel_bytes() + waiting) // len(EVENT)
        clients = [await unread(rig, f"medium {number}") for number in range(6)]
        try:
            await eventually(lambda: rig.gateway.scheduler.counts().arrived == 6 and rig.balanced())
            assert (await rig.post(chat("quick"))).status == 200
            completions = await rig.completions()
        finally:
            for sock in clients:
                sock.close()
    assert [completion.outcome for completion in completions] == ["completed"] * 7


async def test_a_stream_that_is_not_read_ends_sooner_where_too_much_waits_for_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with streaming(tmp_path) as (engine, rig):
        sock = await unread(rig, "large")
        try:
            await eventually(lambda: engine.sent)
            assert (await rig.post(chat("quick"))).status == 200
            monkeypatch.setattr(server_state, "UNREAD_BYTES_MOST", 0)
            monkeypatch.setattr(server_state, "CROWDED_S", 0.0)
            await eventually(lambda: engine.left == 1)
            await eventually(rig.balanced)
            assert await metric(rig, "hmas_unread_connections_closed_total") == 1.0
            outcomes = [completion.outcome for completion in await rig.completions()]
        finally:
            sock.close()
    assert sorted(outcomes) == ["cancelled", "completed"]


def in_memory() -> list[object]:
    """Requests that are in memory."""
    return [one for one in gc.get_objects() if isinstance(one, ActiveRequest | ClientExchange)]


@pytest.mark.parametrize("state", ["upload", "queued", "dropped", "in engine", "answering"])
async def test_clients_that_leave_leave_nothing_in_memory(tmp_path: Path, state: str):
    lists = b"[" + b",".join([b"[]"] * 80_000) + b"]"
    text = b"endless" if state == "answering" else b"silent"
    body = b'{"model":"%b","stream":true,"extra":%b,"pad":"%b","messages":[{"role":"user","content":"%b"}]}' % (
        MODEL.encode(),
        lists,
        b"x" * (3 << 20),
        text,
    )
    n_run = 1 if state in ("queued", "dropped") else 64
    async with streaming(tmp_path, scheduler=SchedulerConfig(policy="fcfs", tick_s=0.02, n_run=n_run)) as (_, rig):
        manager, host_port = rig.gateway.manager, rig.url.removeprefix("http://").split(":")
        # One request stays, as in a gateway that is never idle: what is kept beside it is kept for long.
        async with raw(rig, "endless") as steady:
            await steady.reader.read(1)
            gc.collect()
            gc.disable()
            try:
                blocks, before = sys.getallocatedblocks(), len(in_memory())
                clients = []
                for number in range(12):
                    reader, writer = await asyncio.open_connection(host_port[0], int(host_port[1]))
                    writer.write(HEAD % len(body))
                    writer.write(body[:-1] if state == "upload" else body)
                    await writer.drain()
                    clients.append(writer)
                    if state != "upload":
                        await eventually(partial(holds, manager, number + 2), 20)
                    if state == "answering":
                        await reader.readuntil(b"data: ")
                    del reader
                if state == "dropped":
                    for waiting in [live for live in manager.active.values() if not live.instance]:
                        manager.drop(waiting, Ending(OutcomeKind.REJECTED, 429, "outranked", "another took its place"))
                    del waiting
                else:
                    for writer in clients:
                        writer.transport.abort()
                await eventually(lambda: len(manager.active) == 1)
                await eventually(lambda: len(in_memory()) == before)
                assert sys.getallocatedblocks() - blocks < 80_000, "the lists of one body are 80,000 blocks"
                for writer in clients:
                    writer.transport.abort()
            finally:
                gc.enable()
