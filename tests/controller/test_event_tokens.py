"""Engines that put several tokens into an event of a stream: the pace, the counts and the records are those of tokens."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from gateway_kit import MODEL, chat, running
from scripted_kit import Idle
from typing_kit import known

from hmas.controller.config.schema import EngineConfig
from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

STEP_S = 0.012


class Driven:
    """A scheduler in front of one engine that decodes a token of each stream every 12 ms."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(
            settings=SchedulerSettings(),
            instances=[InstanceSpec(name="i0", capacity_n_run=32)],
            router=make_router("least-loaded"),
            policy="fcfs",
        )
        self.now_s = 100.0
        self._ids = 0

    @property
    def instance(self) -> Instance:
        return self.scheduler.instances["i0"]

    def streams(
        self, count: int, *, events: int = 60, each: int = 1, hidden: int = 0, told: Callable[[int], int | None] = int, faster: float = 1.0
    ) -> list[Ended]:
        """Runs streams side by side.

        Args:
            count: How many.
            events: Events of each.
            each: Tokens of an event.
            hidden: Tokens of each before its first event.
            told: The engine's own count of all the tokens, by that number.
            faster: How much faster the hidden ones were decoded.
        """
        slo = Slo(ttft_ms=5000.0, tpot_ms=50.0)
        ids = [f"{self._ids + number:06d}" for number in range(count)]
        self._ids += count
        for one in ids:
            asked = Request(id=one, tenant="t", model="m", arrival_s=self.now_s, prompt_tokens=100)
            self.scheduler.submit(asked, Estimates(slo=slo), self.now_s)
        self.scheduler.dispatch(self.now_s)
        self.now_s += 0.05 + hidden * STEP_S / faster
        for event in range(events):
            for one in ids:
                self.scheduler.progress(one, event + 1, self.now_s)
            self.scheduler.expire(self.now_s)
            self.now_s += each * STEP_S
        total = told(hidden + events * each)
        ended = [self.scheduler.end(one, OutcomeKind.COMPLETED, self.now_s, total) for one in ids]
        self.now_s += 1.0
        return ended


def test_the_end_of_a_stream_without_text_is_its_first_token():
    told = Driven()
    asked = Request(id="empty", tenant="t", model="m", arrival_s=told.now_s, prompt_tokens=100)
    told.scheduler.submit(asked, Estimates(slo=Slo(ttft_ms=2000, tpot_ms=60)), told.now_s)
    told.scheduler.dispatch(told.now_s)
    ended = told.scheduler.end("empty", OutcomeKind.COMPLETED, told.now_s + 0.5, 1)
    assert (ended.ttft_ms, ended.slo_met) == (pytest.approx(500.0), True)


def untold(_: int) -> None:
    """What an engine says of its tokens where the client did not ask for usage."""


@pytest.mark.parametrize("each", [2, 3, 8])
def test_the_pace_is_that_of_tokens_where_an_event_carries_several(each: int):
    driven = Driven()
    for _ in range(5):
        driven.streams(4, each=each)
    assert driven.instance.pace.token_ms(4.0) == pytest.approx(1000 * STEP_S, rel=0.2)
    assert known(driven.instance.pace.alone_ms) == pytest.approx(1000 * STEP_S, rel=0.2)
    prompts, outputs = driven.instance.produced(driven.now_s)
    (ended,) = driven.streams(1, each=each, told=untold)
    assert ended.output_tokens == pytest.approx(60 * each, rel=0.1), "without usage, too"
    assert ended.tpot_ms == pytest.approx(1000 * STEP_S, rel=0.1)
    assert driven.instance.produced(driven.now_s) == (prompts + 100, outputs + ended.output_tokens)


@pytest.mark.parametrize("beyond", [0, 1])
def test_where_an_event_is_a_token_nothing_changes_to_the_last_bit(beyond: int):
    driven, plain = Driven(), Driven()
    for length in (3, 60, 200, 8):
        # The stop token has no event.
        driven.streams(3, events=length, told=lambda tokens: tokens + beyond)
        plain.streams(3, events=length, told=untold)
    assert driven.instance.tally.per_event == 1.0
    paces = [(one.instance.pace.alone_ms, one.instance.pace.token_ms(3.0), one.instance.produced(one.now_s)[0]) for one in (driven, plain)]
    assert paces[0] == paces[1]


@pytest.mark.parametrize("faster", [1.0, 1.7])
def test_reasoning_that_is_not_streamed_is_no_part_of_the_events(faster: float):
    driven = Driven()
    for _ in range(10):
        driven.streams(2, hidden=400, faster=faster)
    assert driven.instance.tally.per_event == 1.0
    assert driven.instance.pace.token_ms(2.0) == pytest.approx(1000 * STEP_S, rel=0.1)


def test_an_engine_that_goes_back_to_one_token_an_event_is_believed():
    driven = Driven()
    driven.streams(20, each=3)
    assert driven.instance.tally.per_event > 2.0
    driven.streams(1)
    assert driven.instance.tally.per_event == 1.0
    for _ in range(10):
        driven.streams(20)
    assert driven.instance.pace.token_ms(20.0) == pytest.approx(1000 * STEP_S, rel=0.1)
    assert not driven.instance.tally.pinned


def test_streams_with_fewer_events_than_tokens_say_nothing_of_those_beside_them():
    driven = Driven()
    for _ in range(10):
        driven.streams(3, each=2)
        driven.streams(1, told=untold)
        driven.streams(1)
    assert driven.instance.tally.per_event == 1.0
    (ended,) = driven.streams(1, told=untold)
    assert (ended.output_tokens, ended.tpot_ms) == (60, pytest.approx(1000 * STEP_S))


def test_a_stream_that_began_before_is_not_counted_anew():
    driven = Driven()
    slo = Slo(ttft_ms=5000.0, tpot_ms=50.0)
    asked = Request(id="long", tenant="t", model="m", arrival_s=driven.now_s, prompt_tokens=100)
    driven.scheduler.submit(asked, Estimates(slo=slo), driven.now_s)
    driven.scheduler.dispatch(driven.now_s)
    driven.scheduler.progress("long", 400, driven.now_s + 0.1)
    driven.streams(8, each=3)
    assert driven.instance.tally.per_event > 2.0
    before = driven.instance.produced(driven.now_s)[1]
    driven.scheduler.progress("long", 401, driven.now_s)
    assert driven.instance.produced(driven.now_s)[1] == before + 1


@pytest.mark.parametrize("tools", [False, True])
async def test_streams_with_usage_teach_the_gateway_to_count_those_without(tmp_path: Path, *, tools: bool):
    def event(**more: Any) -> bytes:
        return b"data: " + orjson.dumps({"object": "chat.completion.chunk", "choices": [], **more}) + b"\n\n"

    async def complete(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(20):
            await response.write(event(choices=[{"index": 0, "delta": {"content": "three of them"}, "finish_reason": None}]))
            await asyncio.sleep(0.005)
        usage = {"prompt_tokens": 9, "completion_tokens": 60} if asked.get("stream_options") else None
        await response.write(event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=usage) + b"data: [DONE]\n\n")
        return response

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = EngineConfig(name="e-0", url=f"http://127.0.0.1:{runner.addresses[0][1]}", kind="openai")
    more: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "write_file", "parameters": {}}}]} if tools else {}
    try:
        async with running(tmp_path, sims=[Idle()], engines_config=[config]) as rig:
            for _ in range(6):
                await rig.post(chat(stream_options={"include_usage": True}, **more))
            await rig.post(chat())
            told = [completion.output_tokens for completion in await rig.completions()]
    finally:
        await runner.cleanup()
    assert told[:6] == [60] * 6
    if tools:
        assert told[6] == 20, "a call of a tool need not have an event for each token"
    else:
        assert 50 < told[6] <= 60, "its 20 events are about 60 tokens"
