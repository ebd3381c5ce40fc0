"""A gateway in front of engines whose answers a test writes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from gateway_kit import FAST, MODEL, Answer, Rig, Sim, running

from hmas.controller.config.schema import EngineConfig
from hmas.controller.core.types import OutcomeKind
from hmas.engines.sim.model import EngineModel


def events(*documents: object) -> bytes:
    return b"".join(b"data: " + orjson.dumps(document) + b"\n\n" for document in documents) + b"data: [DONE]\n\n"


@asynccontextmanager
async def scripted(answers: Callable[[dict[str, Any]], tuple[int, str, bytes]], asked: list[dict[str, Any]]) -> AsyncIterator[str]:
    """An engine that answers each completion with the status, content type and body that `answers` gives; yields its address.

    A request about a kept response gets the document that it would answer a completion with, and the path and the query as `asked`.
    """

    async def complete(request: web.Request) -> web.Response:
        document = await request.json()
        asked.append(document)
        status, content_type, body = answers(document)
        return web.Response(status=status, body=body, headers={"content-type": content_type})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def kept(request: web.Request) -> web.Response:
        return web.json_response(orjson.loads(answers({})[2]) | {"asked": request.path_qs})

    app = web.Application()
    app.router.add_post("/{tail:.*}", complete)
    app.router.add_get("/v1/responses/{tail:.*}", kept)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def before(
    folder: Path, answers: Callable[[dict[str, Any]], tuple[int, str, bytes]], *, engines: int = 1, **fields: Any
) -> AsyncIterator[Any]:
    """A gateway in front of scripted engines; yields its rig and the bodies that the engines were sent."""
    asked: list[dict[str, Any]] = []
    async with scripted(answers, asked) as url:
        configs = [EngineConfig(name=f"e-{number}", url=url, kind="openai") for number in range(engines)]
        async with running(folder, sims=[Idle()], engines_config=configs, **fields) as rig:
            yield rig, asked


class Idle(Sim):
    """Stands where the rig keeps embedded engines; there are none here."""

    def __init__(self) -> None:
        super().__init__("none", EngineModel(FAST), web.AppRunner(web.Application()), 0)


def stream_of(*documents: object) -> Callable[[dict[str, Any]], tuple[int, str, bytes]]:
    return lambda _: (200, "text/event-stream; charset=utf-8", events(*documents))


async def only(rig: Rig) -> tuple[OutcomeKind, int]:
    (completion,) = await rig.completions()
    assert rig.balanced()
    return completion.outcome, completion.status


def breakers(rig: Rig) -> set[tuple[str, int]]:
    return {(instance.breaker.state, instance.breaker.failures) for instance in rig.gateway.fleet.instances.values()}


def named(*documents: dict[str, Any]) -> bytes:
    """Events of an API whose events have the name of their type."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (document["type"].encode(), orjson.dumps(document)) for document in documents)


def named_events(answer: Answer) -> list[dict[str, Any]]:
    """The documents of such events; each has the name of its type."""
    found = []
    assert answer.body.endswith(b"\n\n"), answer.body[-200:]
    for event in answer.body.removesuffix(b"\n\n").split(b"\n\n"):
        name, data = event.split(b"\n")
        document = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + document["type"].encode()
        found.append(document)
    return found
