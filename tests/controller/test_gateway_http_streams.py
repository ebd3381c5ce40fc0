"""Streams from end to end: an engine is slowed to its client's pace, and left when its client leaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from gateway_kit import MODEL, Rig, chat, eventually, running
from http_kit import Client

from hmas.controller.config.schema import EngineConfig

EVENT = orjson.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 65_400}, "finish_reason": None}]})
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
EVENTS = 800


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine:
    """Answers `large` with 50 MB of events, `endless` with one event and then nothing, anything else with one event."""

    def __init__(self) -> None:
        self.sent = 0
        self.left = 0
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
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        large = b"large" in body
        for _ in range(EVENTS if large else 1):
            writer.write(chunk(b"data: " + EVENT + b"\n\n"))
            await writer.drain()
            if large:
                self.sent += len(EVENT)
        if b"endless" in body:
            await reader.readexactly(1)
        writer.write(chunk(LAST) + b"0\r\n\r\n")
        self.large_done = self.large_done or large


@asynccontextmanager
async def streaming(folder: Path) -> AsyncIterator[tuple[Engine, Rig]]:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with running(folder, engines_config=[EngineConfig(name="e", url=url, kind="openai")]) as rig:
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
