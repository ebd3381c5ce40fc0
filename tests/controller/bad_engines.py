"""Small servers that speak like engines and misbehave as they are told, and a gateway in front of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from gateway_kit import MODEL, Rig, running
from scripted_kit import Idle

from hmas.controller.config.schema import EngineConfig

METRICS = "vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total {tokens}\n"
MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
PACE_S = 0.02


class BadEngine:
    """Answers like vLLM: a stream, or a whole answer whose head comes at its end. Its counters move with each token.

    Attributes:
        status: Of the answer to a generation request; other than 200 with `document` and `headers`.
        hung: It takes requests and computes nothing, until it is released.
        tokens_before_hang: Tokens of a stream that still come.
        head_first: The head of a stream comes before anything is computed, as from vLLM; else with the first token.
        unseen: Tokens that are computed after the first one of a stream, and are not sent.
        unwell: Its health check fails.
        posts: Generation requests that it was sent.
    """

    kind = "vllm"

    def __init__(self) -> None:
        self.status = 200
        self.document: object = {"error": {"message": "not for you", "type": "some_error", "param": None, "code": None}}
        self.headers: dict[str, str] = {}
        self.hung = False
        self.unwell = False
        self.tokens_before_hang = 0
        self.head_first = False
        self.unseen = 0
        self.posts = 0
        self.tokens = 0
        self.running = 0
        self.url = ""
        self._released = asyncio.Event()

    def release(self) -> None:
        """It computes again."""
        self.hung = False
        self._released.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["BadEngine"]:
        app = web.Application()
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/{tail:.*}", self._generate)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.release()
            await runner.cleanup()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=METRICS.format(running=self.running, tokens=self.tokens), status=503 if self.unwell else 200)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response(MODELS, status=503 if self.unwell else 200)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.posts += 1
        document = orjson.loads(await request.read())
        if self.status != 200:
            return web.json_response(self.document, status=self.status, headers=self.headers)
        if "embeddings" in request.path:
            await self._hang()
            return web.json_response({"object": "list", "data": [], "model": MODEL})
        self.running += 1
        try:
            return await self._answer(request, document)
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        count = int(document["sim"]["output_tokens"])
        if not document["stream"]:
            await self._hang()
            for _ in range(count):
                await asyncio.sleep(PACE_S)
                self.tokens += 1
            choice = {"index": 0, "message": {"role": "assistant", "content": "a" * count}, "finish_reason": "stop"}
            return web.json_response({"choices": [choice], "usage": {"completion_tokens": count}})
        if not (self.tokens_before_hang or self.head_first):
            await self._hang()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(count):
            if number == self.tokens_before_hang:
                await self._hang()
            self.tokens += 1
            await response.write(event({"index": 0, "delta": {"content": "a"}, "finish_reason": None}))
            for _ in range(0 if number else self.unseen):
                await asyncio.sleep(PACE_S)
                self.tokens += 1
        await response.write(event({"index": 0, "delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n")
        return response

    async def _hang(self) -> None:
        if self.hung:
            await self._released.wait()


class PlainEngine(BadEngine):
    """The same as a server of which nothing but the OpenAI paths is known."""

    kind = "openai"


class ClosingEngine:
    """Answers its health check on connections that it keeps open, and ends the connection of a generation request without an answer.

    Attributes:
        closes: How many generation requests it treats so; the others get an answer.
        posts: Generation requests that it was sent.
    """

    kind = "openai"

    def __init__(self, closes: int = 1_000_000) -> None:
        self.closes = closes
        self.posts = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ClosingEngine"]:
        writers: list[asyncio.StreamWriter] = []

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await self._serve(reader, writer)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in writers:
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next((int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")), 0)
                await reader.readexactly(length)
                answer: object = MODELS
                if head.startswith(b"POST /v1/"):
                    self.posts += 1
                    if self.posts <= self.closes:
                        break
                    answer = {"choices": [choice], "usage": {"completion_tokens": 1}}
                body = orjson.dumps(answer)
                status = b"200 OK" if head.startswith((b"POST /v1/", b"GET /v1/models ")) else b"404 Not Found"
                fields = b"content-type: application/json\r\ncontent-length: %d" % len(body)
                writer.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, fields, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def event(choice: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


@asynccontextmanager
async def before(folder: Path, *engines: BadEngine | ClosingEngine, **parts: Any) -> AsyncIterator[Rig]:
    """A gateway in front of these engines, which are named a, b, c."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.serving())
        configs = [EngineConfig(name=name, url=engine.url, kind=engine.kind) for name, engine in zip("abc", engines, strict=False)]
        yield await stack.enter_async_context(running(folder, sims=[Idle()], engines_config=configs, **parts))


async def metric(rig: Rig, line: str) -> float:
    """The value of one line of the gateway's metrics; 0 if there is no such line."""
    text = (await rig.get("/metrics")).body.decode()
    return next((float(found.rpartition(" ")[2]) for found in text.splitlines() if found.startswith(line + " ")), 0.0)


def circuits(rig: Rig) -> list[tuple[str, str, str]]:
    return [(event["subject"], event["before"], event["after"]) for event in rig.events("engine.circuit")]
