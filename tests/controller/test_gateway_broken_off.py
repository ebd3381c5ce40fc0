"""Connections that end in the middle of an answer: a poll decides about the engine, and a mistaken request takes none from others."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from bad_engines import BadEngine, before, circuits
from gateway_kit import MODEL, Rig, chat, eventually, running
from scripted_kit import breakers, events, named

from hmas.controller.gateway.instances import monitor
from hmas.controller.gateway.instances.circuit_breaker import FAILURES

OPENING = named(
    {"type": "response.created", "response": {"id": "resp_1"}, "sequence_number": 0},
    {"type": "response.in_progress", "response": {"id": "resp_1"}, "sequence_number": 1},
)
ITEM = named({"type": "response.output_item.added", "item": {}, "sequence_number": 2})
TOKEN = events({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}).removesuffix(b"data: [DONE]\n\n")


class Breaks(BadEngine):
    """Ends the connection of a generation request after some bytes of its answer; answers health checks, and `fine` requests."""

    def __init__(self, sent: bytes) -> None:
        super().__init__()
        self.sent = sent
        self.fine = 0

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if self.fine:
            self.fine -= 1
            return await super()._generate(request)
        self.posts += 1
        response = web.StreamResponse(headers={"content-type": "text/event-stream" if self.sent else "application/json"})
        await response.prepare(request)
        await response.write(self.sent or b'{"object": ')
        assert request.transport is not None
        request.transport.close()
        return response


def ask(number: int) -> dict[str, Any]:
    return {"model": MODEL, "input": f"number {number}", "stream": True}


def health(rig: Rig) -> set[str]:
    return {event["after"] for event in rig.events("engine.health")}


async def test_mistaken_responses_take_no_engine_from_others(tmp_path: Path):
    first, second = Breaks(OPENING), Breaks(OPENING)
    async with before(tmp_path, first, second) as rig:
        answers = [await rig.post(ask(number), "/v1/responses") for number in range(FAILURES + 1)]
        assert breakers(rig) == {("closed", 0)}
        assert health(rig) == {"up"}
        first.fine = second.fine = 1
        assert (await rig.post(chat(tokens=1))).status == 200
        assert rig.balanced()
    assert {(answer.status, answer.error["code"]) for answer in answers} == {(502, "engine_unavailable")}
    assert all("the request itself may be at fault" in answer.error["message"] for answer in answers)
    assert first.posts + second.posts == 2 * len(answers) + 1


@pytest.mark.parametrize(("sent", "path"), [(OPENING + ITEM, "/v1/responses"), (TOKEN, "/v1/chat/completions"), (b"", "/v1/embeddings")])
async def test_half_an_answer_counts_towards_the_circuit_alone(tmp_path: Path, sent: bytes, path: str):
    async with before(tmp_path, Breaks(sent)) as rig:
        for number in range(FAILURES):
            assert breakers(rig) == {("closed", number)}
            assert health(rig) == {"up"}
            answer = await rig.post(chat(f"number {number}", input=f"number {number}"), path)
            assert b"may be at fault" not in answer.body
        assert circuits(rig) == [("a", "closed", "open")]


async def test_an_engine_that_dies_in_the_middle_of_an_answer_is_noticed_by_a_poll_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitor, "SNAPSHOT_EVERY_S", 3600.0)
    async with running(tmp_path) as rig:
        async with rig.session.post(rig.url + "/v1/chat/completions", json=chat(tokens=3000)) as response:
            await response.content.readuntil(b"\n\n")
            await rig.sims[0].kill()
            assert b"broke off" in await response.read()
        await eventually(lambda: health(rig) == {"up", "down"})
        assert breakers(rig) == {("closed", 1)}
