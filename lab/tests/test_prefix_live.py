"""The live study of prefix caches: its chats, its users over HTTP, and its figures."""

from itertools import islice

import msgspec
import pytest
from aiohttp import web
from hmas_lab.prefix_live import users
from hmas_lab.prefix_live.chats import APPS, TURNS_MOST, Chats
from hmas_lab.prefix_live.page import body
from hmas_lab.prefix_live.study import figures
from hmas_lab.prefix_live.users import Turn, Users

from hmas.controller.runtime.ports import free_port
from hmas.planning import StudyError

TEXTS = [f"Question number {number} about one thing or another?" for number in range(20)]


def test_a_user_asks_the_same_in_every_run_but_for_the_mark():
    first, same, other = (list(islice(Chats(TEXTS, 1, mark).of(3), 20)) for mark in ("a", "a", "b"))
    assert first == same
    assert [chat.asked for chat in first] == [chat.asked for chat in other]
    assert all(one.system != two.system for one, two in zip(first, other, strict=True))
    assert {chat.app for chat in first} == set(range(APPS))
    assert all(1 <= len(chat.asked) <= TURNS_MOST for chat in first)
    assert len({chat.system for chat in first}) == APPS


class Model:
    """An engine that has cached everything but what is new, and refuses where it is told to."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.sessions: dict[str, int] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        words = sum(len(message["content"].split()) for message in asked["messages"])
        session = request.headers["x-session-id"]
        cached, self.sessions[session] = self.sessions.get(session, 0), words
        response = web.StreamResponse()
        await response.prepare(request)
        usage = {"prompt_tokens": words, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": cached}}
        for event in (
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"content": "two "}}]},
            {"choices": [{"delta": {"content": "words"}}]},
            {"choices": [], "usage": usage},
        ):
            await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


async def turns_of(model: Model, seconds: float) -> list[Turn]:
    port = free_port()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        return await Users(f"http://127.0.0.1:{port}", "m", Chats(TEXTS, 1, "a"), 1).run(4, seconds)
    finally:
        await runner.cleanup()


async def test_users_ask_on_and_count_what_was_cached(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(users, "THINK_MEAN_S", 0.005)
    turns = await turns_of(Model(), 0.3)
    assert len(turns) > 20
    assert not any(turn.error for turn in turns)
    assert all(turn.ttft_ms > 0.0 and turn.tpot_ms >= 0.0 for turn in turns)
    found = figures(turns, 0.3)
    assert 0.3 < found["hit"] <= found["at_best"] < 1.0
    assert found["ttft_ms_p50"] <= found["ttft_ms_p95"]
    assert found["good_rps"] == pytest.approx(len(turns) / 0.3)


async def test_a_refused_request_ends_the_study_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(users, "THINK_MEAN_S", 0.005)
    turns = await turns_of(Model(503), 0.05)
    with pytest.raises(StudyError, match="requests failed: 503: "):
        figures(turns, 0.05)


def test_the_page_has_a_row_for_each_front():
    row = figures(
        [Turn(ttft_ms=100.0 * n, tpot_ms=20.0, prompt_tokens=100, cached_tokens=40, output_tokens=5, at_best=50) for n in (1, 20)], 10
    )
    document = {
        "settings": {"users": 8, "rounds": 1, "seconds": 10.0},
        "targets_ms": [1500.0, 150.0],
        "answer_tokens": 40,
        "missing": ["b"],
        "fronts": {"a": "the one"},
        "summary": {"a": row},
        "rows": [{"front": "a", "round": 0, **row}],
    }
    text = body(document)
    assert "| `a` | 40.0% | 50.0% | 0.10 | 0.10 | 1,050 | " in text
    assert "Not to be had here: b." in text
