"""An engine that answers its health check and computes nothing: found, left alone, and what it has not begun is served elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bad_engines import BadEngine, PlainEngine, before, circuits, event, metric
from gateway_kit import FAST, MODEL, chat, eventually, gateway_config, running
from hypothesis import given
from hypothesis import strategies as st

from hmas.cli.engines import engine_table
from hmas.controller.gateway import app
from hmas.controller.gateway.instances import circuit_breaker, monitor
from hmas.controller.gateway.instances.stall import PREFILL_S_PER_TOKEN, StallWatch, patience_s
from hmas.controller.gateway.requests import completion
from hmas.controller.gateway.requests.relay import relay
from hmas.engines.base import EngineSnapshot
from hmas.engines.errors import EngineSilent
from hmas.engines.http.exchange import Exchange

pytestmark = pytest.mark.slow

SOON = gateway_config(engine_stall_s=0.2, engine_idle_timeout_s=1.0)
EMBEDDING = {"model": MODEL, "input": "x"}
HEAD_SOON = gateway_config(engine_head_timeout_s=0.2)
BOTH_SOON = gateway_config(engine_stall_s=0.2, engine_head_timeout_s=0.2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "SNAPSHOT_EVERY_S", 0.02)
    monkeypatch.setattr(monitor, "GIVE_UP_AFTER_S", 0.2)
    monkeypatch.setattr(app, "HEADS_EVERY_S", 0.05)
    monkeypatch.setattr(circuit_breaker, "FIRST_WAIT_S", 0.1)
    monkeypatch.setattr(circuit_breaker, "LONGEST_WAIT_S", 0.2)


@pytest.mark.parametrize(("stream", "head_first"), [(True, False), (True, True), (False, False)])
async def test_a_hung_engine_is_shown_as_such_and_its_requests_are_served_elsewhere(
    tmp_path: Path, stream: bool, head_first: bool, monkeypatch: pytest.MonkeyPatch
):
    # No probe begins before all is looked at.
    monkeypatch.setattr(circuit_breaker, "FIRST_WAIT_S", 10.0)
    hung, well = BadEngine(), BadEngine()
    hung.hung, hung.head_first = True, head_first
    async with before(tmp_path, hung, well, gateway=SOON) as rig:
        answer = await asyncio.wait_for(rig.post(chat(tokens=2, stream=stream), headers={"x-request-id": "moved"}), 5)
        assert (answer.status, answer.headers["x-hmas-instance"]) == (200, "b")
        assert (hung.posts, well.posts) == (1, 1)
        assert await metric(rig, "hmas_retries_total") == 1.0
        told = (await rig.admin("GET", "/admin/requests/moved")).json
        first, second = told["attempts"]
        assert (first["instance"], second["instance"], second["failed"]) == ("a", "b", None)
        assert "computed no token" in first["failed"]
        hung_ms = first["failed_after_ms"] - first["after_ms"]
        assert max(told["queue"]["waited_ms"], float(answer.headers["x-hmas-queue-ms"])) < hung_ms, "the try that failed is no waiting"
        assert hung_ms > 190.0
        assert circuits(rig)[0] == ("a", "closed", "open")
        opened = rig.events("engine.circuit")[0]
        assert "reports 1 running requests and has computed no token" in opened["reason"]
        listed = (await rig.admin("GET", "/admin/engines")).json["engines"]
        row = next(line for line in engine_table(listed).splitlines() if line.startswith("a "))
        assert "circuit" in row
        assert rig.balanced()


async def test_it_comes_back_by_a_probe(tmp_path: Path):
    hung, well = BadEngine(), BadEngine()
    hung.hung = True
    async with before(tmp_path, hung, well, gateway=SOON) as rig:
        assert (await rig.post(chat(tokens=1))).status == 200
        hung.release()
        async with asyncio.timeout(10):
            number = 0
            while circuits(rig)[-1] != ("a", "half-open", "closed"):
                number += 1
                assert (await rig.post(chat(f"number {number}", tokens=1))).status == 200
        assert hung.posts > 1
        assert rig.balanced()


async def test_the_only_engine_keeps_its_requests_while_it_hangs(tmp_path: Path):
    """There is nowhere else to send them; they are answered when it goes on, and new ones wait for the probe."""
    engine = BadEngine()
    engine.hung = True
    async with before(tmp_path, engine, gateway=SOON) as rig:
        first = asyncio.create_task(rig.post(chat(tokens=2, stream=False)))
        await eventually(lambda: circuits(rig))
        second = asyncio.create_task(rig.post(chat("second", tokens=2, stream=False)))
        engine.release()
        answers = await asyncio.wait_for(asyncio.gather(first, second), 10)
        assert rig.balanced()
    assert [answer.status for answer in answers] == [200, 200]
    assert engine.posts == 2


async def test_a_long_answer_that_is_not_streamed_is_no_hang(tmp_path: Path):
    """It has no head for five times the limits, but tokens are counted."""
    engine, other = BadEngine(), BadEngine()
    async with before(tmp_path, engine, other, gateway=BOTH_SOON) as rig:
        answer = await rig.post(chat(tokens=50, stream=False))
        assert circuits(rig) == []
    assert (answer.status, engine.posts + other.posts) == (200, 1)


@pytest.mark.parametrize("head_first", [False, True])
async def test_without_counters_a_streamed_request_has_a_time_limit_for_its_beginning(tmp_path: Path, head_first: bool):
    hung, well = PlainEngine(), PlainEngine()
    hung.hung, hung.head_first = True, head_first
    async with before(tmp_path, hung, well, gateway=HEAD_SOON) as rig:
        answer = await asyncio.wait_for(rig.post(chat(tokens=2), headers={"x-request-id": "moved"}), 5)
        failed = (await rig.admin("GET", "/admin/requests/moved")).json["attempts"][0]["failed"]
        assert not rig.events("engine.health")[2:], "it was never down: its health check answers"
        assert rig.balanced()
    assert (answer.status, answer.headers["x-hmas-instance"], hung.posts, well.posts) == (200, "b", 1, 1)
    assert "no answer begun within" in failed


async def test_without_another_engine_a_request_that_has_not_begun_stays(tmp_path: Path):
    """The engine is slow, or has a queue of its own."""
    slow = PlainEngine()
    slow.hung = True
    async with before(tmp_path, slow, gateway=HEAD_SOON) as rig:
        waiting = asyncio.create_task(rig.post(chat(tokens=2)))
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert not done, "five times the limit"
        slow.release()
        answer = await asyncio.wait_for(waiting, 5)
        assert circuits(rig) == []
        assert rig.balanced()
    assert (answer.status, slow.posts) == (200, 1)


async def test_a_head_and_a_long_prompt_are_no_silence(tmp_path: Path):
    slow = msgspec.structs.replace(FAST, prefill_ms_per_token=1.0)
    async with running(tmp_path, engines=2, profile=slow, gateway=gateway_config(engine_idle_timeout_s=0.1)) as rig:
        answer = await rig.post(chat("word " * 300, tokens=3))
        (completion,) = await rig.completions()
        assert len(rig.events("engine.health")) == 2, "both came up, none went down"
        assert sum(len(sim.bodies) for sim in rig.sims) == 1
    assert (answer.status, answer.events[-1]) == (200, "[DONE]")
    assert completion.ttft_ms > 200.0, "longer than an answer that has begun may be silent"


async def test_silence_while_tokens_are_counted_is_no_failure(tmp_path: Path):
    """The model reasons, and the request asks to see none of it."""
    engine = BadEngine()
    engine.unseen = 15
    async with before(tmp_path, engine, gateway=gateway_config(engine_idle_timeout_s=0.1)) as rig:
        answer = await rig.post(chat(tokens=3))
        assert rig.balanced()
    assert (answer.status, answer.text, answer.events[-1]) == (200, "aaa", "[DONE]")


async def test_and_one_that_is_not_streamed_has_none(tmp_path: Path):
    slow, other = PlainEngine(), PlainEngine()
    slow.hung = True
    async with before(tmp_path, slow, other, gateway=HEAD_SOON) as rig:
        asked = asyncio.create_task(rig.post(chat(tokens=2, stream=False)))
        done, _ = await asyncio.wait({asked}, timeout=0.8)
        assert not done
        slow.release()
        assert (await asked).status == 200
    assert (slow.posts, other.posts) == (1, 0)


async def test_embeddings_on_a_hung_engine_are_served_elsewhere(tmp_path: Path):
    hung, well = PlainEngine(), PlainEngine()
    hung.hung = True
    async with before(tmp_path, hung, well, gateway=HEAD_SOON) as rig:
        answer = await asyncio.wait_for(rig.post(EMBEDDING, "/v1/embeddings"), 5)
        assert await metric(rig, "hmas_passthrough_retries_total") == 1.0
        assert not rig.events("engine.health")[2:], "it was never down: its health check answers"
    assert (answer.status, answer.headers["x-hmas-instance"], hung.posts, well.posts) == (200, "b", 1, 1)


async def test_embeddings_on_the_only_engine_end_with_its_time_limit(tmp_path: Path):
    hung = PlainEngine()
    hung.hung = True
    async with before(tmp_path, hung, gateway=HEAD_SOON) as rig:
        answer = await asyncio.wait_for(rig.post(EMBEDDING, "/v1/embeddings"), 5)
        assert (await rig.get("/ready")).status == 200
    assert (answer.status, answer.json["error"]["code"]) == (502, "engine_error")
    assert "engine a: no response head within 0.2" in answer.json["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_what_an_engine_that_goes_down_has_not_begun_is_served_elsewhere(tmp_path: Path, stream: bool):
    gone, well = PlainEngine(), PlainEngine()
    gone.hung = True
    async with before(tmp_path, gone, well, gateway=gateway_config()) as rig:
        asked = asyncio.create_task(rig.post(chat(tokens=2, stream=stream)))
        await eventually(lambda: gone.posts)
        gone.unwell = True
        answer = await asyncio.wait_for(asked, 5)
        listed = (await rig.admin("GET", "/admin/engines")).json["engines"]
        assert next(line for line in engine_table(listed).splitlines() if line.startswith("a ")).split()[2] == "down"
        assert rig.balanced()
    assert (answer.status, answer.headers["x-hmas-instance"], gone.posts, well.posts) == (200, "b", 1, 1)


async def test_what_has_begun_is_not_sent_twice(tmp_path: Path):
    hung, well = BadEngine(), BadEngine()
    hung.hung, hung.tokens_before_hang = True, 2
    async with before(tmp_path, hung, well, gateway=SOON) as rig:
        answer = await asyncio.wait_for(rig.post(chat(tokens=5)), 5)
        assert rig.balanced()
    *_, error, done = answer.events
    assert (answer.status, done) == (200, "[DONE]")
    assert "silent" in error["error"]["message"]
    assert well.posts == 0


async def test_silence_in_the_middle_ends_the_answer_and_leaves_the_engine_up(tmp_path: Path):
    engine = PlainEngine()
    engine.hung, engine.tokens_before_hang = True, 1
    async with before(tmp_path, engine, gateway=gateway_config(engine_idle_timeout_s=0.1)) as rig:
        answer = await asyncio.wait_for(rig.post(chat(tokens=5)), 5)
        assert len(rig.events("engine.health")) == 1, "it came up, and never went down"
        assert rig.balanced()
    assert "engine a: the engine was silent for 0.1 s" in answer.events[-2]["error"]["message"]


def reading(at_s: float, *, running: int = 1, tokens: int = 0, healthy: bool = True) -> EngineSnapshot:
    return EngineSnapshot(engine="e", taken_s=at_s, healthy=healthy, running=running, generation_tokens_total=tokens)


def test_only_running_requests_and_totals_that_stand_still_count():
    watch = StallWatch()
    assert watch.stalled_s(reading(100.0)) == 0.0
    assert watch.stalled_s(reading(103.0)) == 3.0
    assert watch.stalled_s(reading(104.0, tokens=1)) == 0.0
    assert watch.stalled_s(reading(109.0, tokens=1)) == 5.0
    assert watch.stalled_s(reading(110.0, tokens=1, running=0)) == 0.0
    assert watch.stalled_s(reading(111.0, tokens=1)) == 1.0
    assert watch.stalled_s(reading(112.0, tokens=1, healthy=False)) == 0.0
    watch.restart(113.0)
    assert watch.stalled_s(reading(114.0, tokens=1)) == 1.0


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=50))
def test_it_never_measures_more_than_the_time_since_something_was_computed(script: list[tuple[float, int, int, bool]]):
    watch, now_s, tokens, moved_s = StallWatch(), 0.0, 0, 0.0
    for pause_s, busy, more, healthy in script:
        now_s += pause_s
        tokens += more
        if more:
            moved_s = now_s
        stalled_s = watch.stalled_s(reading(now_s, running=busy, tokens=tokens, healthy=healthy))
        assert 0.0 <= stalled_s <= now_s - moved_s + 1e-9


def test_a_long_prompt_gets_more_time():
    assert patience_s(60.0, 0) == 60.0
    assert patience_s(60.0, 100_000) == 60.0 + 100_000 * PREFILL_S_PER_TOKEN


async def test_bytes_that_come_while_a_request_is_taken_back_do_not_reach_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between the decision to take it back and its task's next turn the engine's connection may still be read."""
    hung, well = BadEngine(), BadEngine()
    hung.hung = hung.head_first = True
    responses: list[Exchange] = []

    async def noted(response: Exchange, *args: Any, **kwargs: Any) -> None:
        responses.append(response)
        await relay(response, *args, **kwargs)

    monkeypatch.setattr(completion, "relay", noted)
    async with before(tmp_path, hung, well) as rig:
        answer = asyncio.create_task(rig.post(chat(tokens=2)))
        await eventually(lambda: responses and responses[0].take is not None)
        (live,) = rig.gateway.manager.active.values()
        live.recall(EngineSilent("too slow"))
        take = responses[0].take
        assert take is not None
        with pytest.raises(EngineSilent):
            take(event({"index": 0, "delta": {"content": "late"}}))
        got = await answer
        assert (got.status, got.headers["x-hmas-instance"]) == (200, "b")
        assert "late" not in str(got.events)
        assert rig.balanced()
