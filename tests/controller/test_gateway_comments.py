"""Comments of an engine begin no answer: until the first event, a request can go to another engine, or get a status of its own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from bad_engines import PlainEngine, before
from gateway_kit import chat, gateway_config
from scripted_kit import events

from hmas.controller.gateway import app

REFUSED = {"message": "no such grammar", "type": "BadRequestError", "param": None, "code": 400}


class CommentingEngine(PlainEngine):
    """Sends a comment, as vLLM does while a request waits.

    Attributes:
        then: What follows; empty for the end of the connection.
    """

    def __init__(self, then: bytes = b"") -> None:
        super().__init__()
        self.then = then

    async def _answer(self, request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")
        # The comment is to arrive alone.
        await asyncio.sleep(0.02)
        await self._hang()
        if not self.then and request.transport is not None:
            request.transport.close()
        else:
            await response.write(self.then)
        return response


@pytest.mark.parametrize("hung", [False, True], ids=["closes", "hangs"])
async def test_another_engine_takes_over(tmp_path: Path, hung: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "HEADS_EVERY_S", 0.05)
    commenting, well = CommentingEngine(), PlainEngine()
    commenting.hung = hung
    async with before(tmp_path, commenting, well, gateway=gateway_config(engine_head_timeout_s=0.1)) as rig:
        answer = await asyncio.wait_for(rig.post(chat(tokens=3)), 5)
        assert rig.balanced()
    assert (answer.status, answer.headers["x-hmas-instance"], answer.text) == (200, "b", "aaa")
    assert b": keep-alive" not in answer.body
    assert (answer.events[-1], commenting.posts, well.posts) == ("[DONE]", 1, 1)


async def test_an_error_event_becomes_the_status(tmp_path: Path):
    async with before(tmp_path, CommentingEngine(events({"error": REFUSED}))) as rig:
        answer = await rig.post(chat())
        assert rig.balanced()
    assert (answer.status, answer.error) == (400, REFUSED)
