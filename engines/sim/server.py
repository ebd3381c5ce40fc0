"""The embedded engine over HTTP: an OpenAI-compatible server whose tokens come from `EngineModel` in real time.

    hmas run engine --profile demo-small --port 8101 --name sim-1 --model demo

The server has these paths besides the OpenAI ones: `GET /sim/state` (an `EngineSnapshot`), `POST /sim/knobs` (`Knobs` -> `KnobReport`),
`POST /abort_requests` (`{"request_ids": [...]}`, ids as sent in `x-request-id`). A body's `"sim": {"output_tokens": N}` sets the answer's
true length, `"sim": {"prompt_tokens": N}` the prompt's.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from uuid import uuid4

import msgspec
import orjson
from aiohttp import web
from aiohttp.http import HttpVersion11

from hmas.engines.base import Knobs
from hmas.engines.sim.apis import MessagesReply, ResponsesReply, ResponseStore, ResponseTurn, count_tokens, message_error, parse_messages
from hmas.engines.sim.model import EngineModel, SimRequest
from hmas.engines.sim.reply import Reply, Tally, embed, render_metrics
from hmas.engines.sim.streams import Driver, Sink, Stream, Whole
from hmas.engines.sim.wire import Ask, Refused, parse_chat, parse_completion

T = TypeVar("T")

MAX_BODY_BYTES = 64 << 20
MAX_LIVE_REQUESTS = 50_000
MAX_ID_CHARS = 128
SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _AbortOrder(msgspec.Struct):
    request_ids: list[str]


class SimServer:
    """The handlers over one driver. Arguments are as for `create_app`."""

    def __init__(
        self,
        model: EngineModel,
        model_name: str,
        name: str,
        *,
        now_s: Callable[[], float] | None = None,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        # No blocks are computed of the texts that come here, so that no request has any.
        model.caches_prefixes = False
        self._driver = Driver(model, settle)
        self._model_name = model_name
        self._name = name
        self._now_s = now_s or process_clock()
        self._draining = False
        self._ended: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0})
        self._live_ids: dict[str, set[str]] = {}
        self._sequence = 0
        self._responses = ResponseStore()

    async def heartbeat(self, _app: web.Application) -> AsyncIterator[None]:
        """Runs the engine during the lifetime of the application."""
        task = asyncio.create_task(self._driver.run(), name=f"engine {self._name}")
        yield
        task.cancel()
        await asyncio.wait([task])

    async def drain(self, _app: web.Application) -> None:
        """Refuses new requests while the running ones end."""
        self._draining = True

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers every error with an OpenAI error document."""
        try:
            return await handler(request)
        except Refused as error:
            return _refused(request, error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            refused = Refused(error.status, f"{request.method} {request.path}: {error.reason}", kind="HTTPError")
            return _refused(request, refused)

    async def count_tokens(self, request: web.Request) -> web.Response:
        """POST /v1/messages/count_tokens."""
        length = self._driver.model.profile.max_model_len
        return _json(count_tokens(await request.read(), model=self._model_name, max_model_len=length))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        turn = ResponseTurn(await request.read(), self._responses)
        return await self.generate(request, parse=turn.parse, render=partial(ResponsesReply, turn=turn), prefix="resp_")

    async def response(self, request: web.Request) -> web.Response:
        """GET or DELETE /v1/responses/ID, POST /v1/responses/ID/cancel: every response has ended when its id is known."""
        response_id = request.match_info["id"]
        stored, _ = self._responses.get(response_id)
        if request.method == "POST":
            raise Refused(400, "Cannot cancel a synchronous response.", kind="invalid_request_error", param="response_id")
        if request.method == "GET":
            return _json(orjson.dumps(stored))
        self._responses.delete(response_id)
        return _json(orjson.dumps({"id": response_id, "object": "response.deleted", "deleted": True}))

    async def embeddings(self, request: web.Request) -> web.Response:
        """POST /v1/embeddings."""
        return _json(embed(await request.read(), model=self._model_name))

    async def models(self, _request: web.Request) -> web.Response:
        """GET /v1/models."""
        profile = self._driver.model.profile
        card = {"id": self._model_name, "object": "model", "created": int(self._now_s()), "owned_by": "hmas", "root": profile.model}
        return _json(orjson.dumps({"object": "list", "data": [card | {"parent": None, "max_model_len": profile.max_model_len}]}))

    async def health(self, _request: web.Request) -> web.Response:
        """GET /health: 200 with an empty body, 503 while draining."""
        return web.Response(status=503 if self._draining else 200)

    async def version(self, _request: web.Request) -> web.Response:
        """GET /version."""
        model = self._driver.model
        return _json(orjson.dumps({"version": f"sim/{model.profile.name}", "scheduling_policy": model.order}))

    async def metrics(self, _request: web.Request) -> web.Response:
        """GET /metrics."""
        model = self._driver.model
        snapshot = model.snapshot(self._name, self._now_s())
        body = render_metrics(snapshot, model.profile, model_name=self._model_name, ended=self._ended, stalled_s=self._driver.stalled_s)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def state(self, _request: web.Request) -> web.Response:
        """GET /sim/state."""
        return _json(msgspec.json.encode(self._driver.model.snapshot(self._name, self._now_s())))

    async def knobs(self, request: web.Request) -> web.Response:
        """POST /sim/knobs."""
        order = _decoded(await request.read(), Knobs)
        return _json(msgspec.json.encode(self._driver.model.apply_knobs(order)))

    async def abort(self, request: web.Request) -> web.Response:
        """POST /abort_requests: answers with the ids that were in flight."""
        order = _decoded(await request.read(), _AbortOrder)
        aborted = []
        for given in order.request_ids:
            live = self._live_ids.get(given.removeprefix("chatcmpl-").removeprefix("cmpl-"), set())
            ended = [inner for inner in sorted(live) if self._driver.abort(inner)]
            aborted += [given] if ended else []
        return _json(orjson.dumps({"aborted": aborted}))

    async def generate(
        self, request: web.Request, *, parse: Callable[..., Ask], render: Callable[..., Reply], prefix: str
    ) -> web.StreamResponse:
        """Answers a request for completions. An API differs by how its bodies are read, what it answers, and how its ids begin."""
        if self._draining:
            raise Refused(503, "the engine is shutting down", kind="ServiceUnavailableError")
        model = self._driver.model
        if model.running + model.waiting >= MAX_LIVE_REQUESTS:
            raise Refused(503, f"the engine holds {MAX_LIVE_REQUESTS} requests", kind="ServiceUnavailableError")
        ask = parse(await request.read(), model=self._model_name, max_model_len=model.profile.max_model_len)
        outer = request.headers.get("X-Request-Id", "")[:MAX_ID_CHARS] or uuid4().hex
        self._sequence += 1
        inners = [f"{outer}#{self._sequence}.{index}" for index in range(ask.answers)]
        self._live_ids.setdefault(outer, set()).update(inners)
        ended = "abort"
        try:
            replies = self._replies(ask, prefix + outer, render)
            if model.profile.request_ms:
                await asyncio.sleep(model.profile.request_ms / 1000.0)
            answer = await (self._stream if ask.stream else self._whole)(request, ask, replies, inners)
            ended = ask.finish if ask.finish == "length" else "stop"
        finally:
            self._ended[ended] += 1
            for inner in inners:
                self._driver.drop(inner)
            self._live_ids[outer].difference_update(inners)
            if not self._live_ids[outer]:
                del self._live_ids[outer]
        return answer

    def _replies(self, ask: Ask, answer_id: str, render: Callable[..., Reply]) -> list[Reply]:
        """Makes one reply for each answer that the request asks for."""
        tally, created_s = Tally(ask.answers), int(self._now_s())
        return [
            render(ask, answer_id=answer_id, model=self._model_name, created_s=created_s, index=index, tally=tally)
            for index in range(ask.answers)
        ]

    async def _stream(self, request: web.Request, ask: Ask, replies: Sequence[Reply], inners: Sequence[str]) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE_HEADERS)
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left before the head was written")
        ends: list[asyncio.Future[None]] = []
        for reply, inner in zip(replies, inners, strict=True):
            ends.append(asyncio.get_running_loop().create_future())
            self._start(ask, inner, Stream(reply, transport, ends[-1], chunked=request.version >= HttpVersion11))
        await asyncio.gather(*ends)
        if not transport.is_closing():
            await response.write_eof()
        return response

    async def _whole(self, request: web.Request, ask: Ask, replies: Sequence[Reply], inners: Sequence[str]) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left before it was answered")
        ends: list[asyncio.Future[tuple[int, bool]]] = []
        for inner in inners:
            ends.append(asyncio.get_running_loop().create_future())
            self._start(ask, inner, Whole(transport, ends[-1]))
        counts = await asyncio.gather(*ends)
        choices = [reply.choice(tokens, aborted=aborted) for reply, (tokens, aborted) in zip(replies, counts, strict=True)]
        return _json(replies[0].whole(choices))

    def _start(self, ask: Ask, inner: str, sink: Sink) -> None:
        request = SimRequest(inner, ask.prompt_tokens, ask.output_tokens, ask.priority, self._now_s())
        self._driver.start(request, sink)


def _refused(request: web.Request, error: Refused) -> web.Response:
    body = message_error(error) if request.path.startswith("/v1/messages") else error.document()
    return web.Response(status=error.status, body=body, content_type="application/json")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise Refused(400, str(error)) from error


def create_app(
    model: EngineModel,
    model_name: str,
    name: str,
    *,
    now_s: Callable[[], float] | None = None,
    settle: Callable[[], Awaitable[None]] | None = None,
) -> web.Application:
    """The application. Serve it with `handler_cancellation=True`, so that a client's disconnect is detected at once.

    It has the instance's name in snapshots, and serves its model under `model_name`. The clock tells seconds since the epoch and never goes
    back, by default `process_clock`. `settle` is as in `hmas.engines.sim.streams.Driver`.
    """
    return app_of(SimServer(model, model_name, name, now_s=now_s, settle=settle))


def app_of(server: SimServer) -> web.Application:
    """The application of a server."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[server.guard])
    app.add_routes(
        [
            web.post("/v1/chat/completions", partial(server.generate, parse=parse_chat, render=Reply, prefix="chatcmpl-")),
            web.post("/v1/completions", partial(server.generate, parse=parse_completion, render=Reply, prefix="cmpl-")),
            web.post("/v1/messages", partial(server.generate, parse=parse_messages, render=MessagesReply, prefix="msg_")),
            web.post("/v1/messages/count_tokens", server.count_tokens),
            web.post("/v1/responses", server.responses),
            web.get("/v1/responses/{id}", server.response),
            web.delete("/v1/responses/{id}", server.response),
            web.post("/v1/responses/{id}/cancel", server.response),
            web.post("/v1/embeddings", server.embeddings),
            web.get("/v1/models", server.models),
            web.get("/health", server.health),
            web.get("/version", server.version),
            web.get("/metrics", server.metrics),
            web.get("/sim/state", server.state),
            web.post("/sim/knobs", server.knobs),
            web.post("/abort_requests", server.abort),
        ]
    )
    app.on_shutdown.append(server.drain)
    app.cleanup_ctx.append(server.heartbeat)
    return app


def process_clock() -> Callable[[], float]:
    """A clock for this process: wall time read once, plus the monotonic time since then."""
    offset_s = time.time_ns() * 1e-9 - time.monotonic()
    return lambda: offset_s + time.monotonic()


async def start(app: web.Application, *, host: str = "127.0.0.1", port: int = 0, grace_s: float = 10.0) -> tuple[web.AppRunner, int]:
    """Serves an application from `create_app`; port 0 is a free one. `AppRunner.cleanup` waits `grace_s` for running requests.

    Returns:
        The runner, which the caller has to clean up, and the port.

    Raises:
        OSError: The port is taken.
    """
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=grace_s)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=4096).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])
