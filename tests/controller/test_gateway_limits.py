"""Bounds and endings: a full queue, deadlines, clients that leave, the drain."""

import asyncio
from pathlib import Path

import aiohttp
import msgspec
import orjson
import pytest
from bad_engines import BadEngine, before
from gateway_kit import MODEL, Answer, Rig, chat, eventually, gateway_config, most_held, running, start_sim

from hmas.controller.config.schema import EngineConfig, SchedulerConfig
from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.http.server import HttpServer

ONE_AT_A_TIME = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02, queue_limit=2)
LONG = 3500


async def busy(rig: Rig) -> "asyncio.Task[Answer]":
    """Takes the only slot for seconds."""
    task = asyncio.create_task(rig.post(chat("long", tokens=LONG)))
    await eventually(lambda: rig.sims[0].model.running == 1)
    return task


async def leave(*tasks: "asyncio.Task[Answer]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def outcomes(rig: Rig) -> dict[str, int]:
    await eventually(lambda: not rig.gateway.manager.active)
    assert rig.balanced()
    found: dict[str, int] = {}
    for completion in await rig.completions():
        found[completion.outcome.value] = found.get(completion.outcome.value, 0) + 1
    return found


async def test_a_full_queue_gets_429(tmp_path: Path):
    async with running(tmp_path, scheduler=ONE_AT_A_TIME) as rig:
        long = await busy(rig)
        waiting = [asyncio.create_task(rig.post(chat(f"waits {number}"))) for number in range(2)]
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 2)
        answer = await rig.post(chat("one too many"))
        await leave(long, *waiting)
        ended = await outcomes(rig)
        (refused,) = (one for one in await rig.completions() if one.outcome is OutcomeKind.REJECTED)
    assert (refused.status, refused.output_tokens, refused.queue_ms, refused.slo_met) == (429, 0, -1.0, False)
    assert refused.predicted_output_tokens > 0, "its record has what the gateway estimated, as every other"
    assert (answer.status, answer.error["code"], answer.error["type"]) == (429, "queue_full", "rate_limit_error")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert (answer.headers["x-ratelimit-limit-requests"], answer.headers["x-ratelimit-remaining-requests"]) == ("2", "0")
    assert ended == {"rejected": 1, "cancelled": 3}


async def test_the_deadline_passes_in_the_queue(tmp_path: Path):
    async with running(tmp_path, scheduler=ONE_AT_A_TIME, gateway=gateway_config(request_timeout_s=0.5)) as rig:
        long = await busy(rig)
        for live in rig.gateway.manager.active.values():
            # Else its own deadline would free the slot a moment before the other's passes.
            live.request = msgspec.structs.replace(live.request, deadline_s=float("inf"))
        answer = await rig.post(chat("waits"))
        await leave(long)
        ended = await outcomes(rig)
        assert len(rig.sims[0].bodies) == 1
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert "retry-after" in answer.headers
    assert ended == {"timed_out": 1, "cancelled": 1}


async def test_the_deadline_passes_in_the_stream(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(request_timeout_s=0.3)) as rig:
        answer = await rig.post(chat(tokens=LONG))
        ended = await outcomes(rig)
        await eventually(lambda: rig.sims[0].model.idle)
    assert answer.status == 200
    assert answer.events[-2]["error"]["code"] == "deadline_exceeded"
    assert answer.events[-1] == "[DONE]"
    assert ended == {"timed_out": 1}


async def test_the_deadline_passes_while_a_whole_answer_is_made(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(request_timeout_s=0.3)) as rig:
        answer = await rig.post(chat(tokens=LONG, stream=False))
        ended = await outcomes(rig)
        await eventually(lambda: rig.sims[0].model.idle)
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert answer.headers["x-hmas-instance"] == "sim-1"
    assert ended == {"timed_out": 1}


async def test_overdue_requests_are_shed_where_so_configured(tmp_path: Path):
    settings = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02, overdue="shed")
    async with running(tmp_path, scheduler=settings) as rig:
        long = await busy(rig)
        answer = await rig.post(chat("urgent"), headers={"x-slo-ttft-ms": "150"})
        await leave(long)
        ended = await outcomes(rig)
    assert answer.status == 504
    assert "retry-after" in answer.headers
    assert ended == {"shed": 1, "cancelled": 1}


async def test_a_client_that_leaves_leaves_the_queue(tmp_path: Path):
    async with running(tmp_path, scheduler=ONE_AT_A_TIME) as rig:
        long = await busy(rig)
        waiting = asyncio.create_task(rig.post(chat("waits")))
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 1)
        await leave(waiting)
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 0)
        assert len(rig.sims[0].bodies) == 1, "it never reached the engine"
        await leave(long)
        assert await outcomes(rig) == {"cancelled": 2}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_aborted_at_the_engine(tmp_path: Path, stream: bool):
    async with running(tmp_path) as rig:
        task = asyncio.create_task(rig.post(chat(tokens=LONG, stream=stream)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        if stream:
            view = rig.gateway.scheduler.snapshot
            await eventually(lambda: view(0.0, "g").instances[0].in_flight_tokens > 20)
        await leave(task)
        await eventually(lambda: rig.sims[0].model.idle, timeout_s=1.0)
        assert await outcomes(rig) == {"cancelled": 1}
        (completion,) = await rig.completions()
    assert completion.status == 499
    assert (completion.output_tokens > 0) == stream


async def test_a_client_that_stops_reading_holds_no_more_than_its_own_answer(tmp_path: Path):
    """It is dropped at its deadline, even though the error cannot be written to it."""
    async with running(tmp_path, gateway=gateway_config(request_timeout_s=0.4)) as rig:
        host, port = rig.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        body = orjson.dumps(chat(tokens=LONG, logprobs=True, top_logprobs=20))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await reader.readexactly(1)
        assert await outcomes(rig) == {"timed_out": 1}
        writer.transport.abort()


async def test_the_drain_lets_running_requests_end(tmp_path: Path):
    async with running(tmp_path) as rig:
        running_one = asyncio.create_task(rig.post(chat(tokens=300)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        rig.stop.set()
        await eventually(lambda: rig.gateway.draining)
        ready, refused = await rig.get("/ready"), await rig.post(chat())
        answer = await running_one
        await rig.serving
        completions = await rig.completions()
    assert (ready.status, ready.json["ready"]) == (503, False)
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert "retry-after" in refused.headers
    assert [one.headers["connection"] for one in (ready, refused)] == ["close", "close"]
    assert answer.events[-1] == "[DONE]"
    assert not any("error" in event for event in answer.events[:-1])
    assert [completion.outcome for completion in completions] == [OutcomeKind.COMPLETED]


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the drain is over, no handler gets any more time."""
    close = HttpServer.close
    monkeypatch.setattr(HttpServer, "close", lambda server: close(server, 0.01))


@pytest.mark.usefixtures("no_grace")
async def test_the_drain_lets_end_what_passes_through(tmp_path: Path):
    engine = BadEngine()
    engine.hung = True
    async with before(tmp_path, engine) as rig:
        asked = asyncio.create_task(rig.post({"model": MODEL, "input": "x"}, "/v1/embeddings"))
        await eventually(lambda: engine.posts)
        rig.stop.set()
        await eventually(lambda: rig.gateway.draining)
        done, _ = await asyncio.wait({asked, rig.serving}, timeout=0.1)
        assert not done
        engine.release()
        answer = await asked
        await asyncio.wait_for(rig.serving, 1)
    assert (answer.status, answer.headers["connection"]) == (200, "close"), "though it came before the drain"


@pytest.mark.usefixtures("no_grace")
async def test_the_drain_waits_for_a_body_that_is_on_its_way(tmp_path: Path):
    body = orjson.dumps(chat(tokens=3, stream=False))
    async with running(tmp_path) as rig:
        host, port = rig.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        rig.stop.set()
        await eventually(lambda: rig.gateway.draining)
        done, _ = await asyncio.wait({rig.serving}, timeout=0.1)
        assert not done
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await asyncio.wait_for(rig.serving, 1)
        writer.transport.abort()


async def test_the_drain_cuts_off_what_takes_too_long(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(drain_s=0.2), scheduler=ONE_AT_A_TIME) as rig:
        long = await busy(rig)
        waiting = asyncio.create_task(rig.post(chat("waits")))
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 1)
        rig.stop.set()
        streamed, queued = await long, await waiting
        await rig.serving
        kinds = {completion.outcome for completion in await rig.completions()}
        await eventually(lambda: rig.sims[0].model.idle)
    assert streamed.events[-2]["error"]["code"] == "shutting_down"
    assert streamed.events[-1] == "[DONE]"
    assert (queued.status, queued.error["code"]) == (503, "shutting_down")
    assert kinds == {OutcomeKind.FAILED}


async def test_a_second_signal_ends_the_drain(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(drain_s=60.0)) as rig:
        long = await busy(rig)
        rig.stop.set()
        await eventually(lambda: rig.gateway.draining)
        rig.hurry.set()
        streamed = await long
        async with asyncio.timeout(5):
            await rig.serving
    assert streamed.events[-2]["error"]["code"] == "shutting_down"


async def test_an_idle_gateway_drains_at_once(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(drain_s=60.0)) as rig:
        rig.stop.set()
        async with asyncio.timeout(3):
            await rig.serving
        with pytest.raises(aiohttp.ClientConnectionError):
            await rig.get("/health")


async def test_the_window_holds(tmp_path: Path):
    async with running(tmp_path, scheduler=SchedulerConfig(policy="fcfs", n_run=3, tick_s=0.02)) as rig:
        async with most_held(rig.sims[0]) as most:
            await asyncio.gather(*(rig.post(chat(f"number {number}", tokens=20)) for number in range(12)))
        assert await outcomes(rig) == {"completed": 12}
    assert most == [3]


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_queued_and_one_that_only_looks_so_is_not(tmp_path: Path):
    sim = await start_sim("sim-1")
    engines = [EngineConfig(name="sim-1", url=sim.url, kv_capacity_tokens=100)]
    async with running(tmp_path, sims=[sim], engines_config=engines) as rig:
        answer = await rig.post(chat("word " * 500))
        small = await rig.post(chat("word"))
        ended = await outcomes(rig)
        refusal = next(item for item in await rig.completions() if item.outcome is OutcomeKind.REJECTED)
        looks_long = await rig.post(chat("word " * 300))
        counted = [await rig.post({"model": MODEL, "prompt": [5] * size, "max_tokens": 1}, "/v1/completions") for size in (99, 100)]
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert "retry-after" not in answer.headers, "it will never fit"
    assert small.status == 200
    assert looks_long.status == 200, "the length of a text is an estimate: the engine decides"
    assert [one.status for one in counted] == [200, 400]
    assert ended == {"rejected": 1, "completed": 1}
    assert refusal.status == 400
    assert refusal.queue_ms == -1
