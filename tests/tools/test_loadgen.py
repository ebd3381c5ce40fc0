import asyncio
import json
import sys
from contextlib import asynccontextmanager
from statistics import median

import msgspec
import orjson
import pytest
from aiohttp import web
from sim_faults import faulty_app

from hmas.controller.core.types import Slo, TaskType
from hmas.controller.runtime.clock import SystemClock
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas.engines.sim.server import start
from hmas.loadgen.process import (
    LoadGenerator,
    LoadSpec,
    judge_refusal,
    judge_stream,
    read_plan,
    request_body,
    request_headers,
    write_plan,
)
from hmas.loadgen.results import read_results
from hmas.loadgen.sse import AnswerReader
from hmas.loadgen.workload import Arrival, ClientBody, Turn


def arrival(at_s=0.0, output=12, **kwargs):
    fields = {
        "at_s": at_s,
        "messages": (Turn("user", "Say something about tidal power."),),
        "prompt_tokens": 8,
        "output_tokens": output,
        "max_tokens": 1024,
        "task_type": TaskType.QA,
        "importance": 0.75,
        "slo": Slo(ttft_ms=2000, tpot_ms=100),
        "tenant": "aurora",
        "kind": "conv",
    }
    return Arrival(**(fields | kwargs))


@asynccontextmanager
async def engine(fault=None):
    profile = msgspec.structs.replace(load_profile("demo-small"), step_ms=1.0)
    app = faulty_app(EngineModel(profile), "demo", "sim-1", fault)
    runner, port = await start(app, grace_s=0.1)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def send(url, arrivals, **kwargs):
    spec = LoadSpec(**({"url": url, "model": "demo", "length_channel": "sim", "drain_s": 10.0} | kwargs))
    generator = LoadGenerator(arrivals, spec, SystemClock())
    summary = await generator.run()
    return generator.results, summary


async def test_answers_of_a_real_engine_are_timed_and_counted():
    async with engine() as url:
        results, summary = await send(url, [arrival(0.02 * i, output=5 + i) for i in range(20)])
    assert [r.outcome for r in results] == ["completed"] * 20
    assert [r.output_tokens for r in results] == [5 + i for i in range(20)]
    for r in results:
        assert 0.0 < r.ttft_ms < r.total_ms
        assert 0.0 <= r.tpot_ms < 200.0
        assert r.total_ms == pytest.approx(r.ttft_ms + r.tpot_ms * (r.output_tokens - 1), abs=60.0)
        assert r.status == 200
    # Where the machine stands still for a moment, the tokens of one answer are read together.
    assert median(r.tpot_ms for r in results) > 0.5
    assert summary.outcomes == {"completed": 20, "rejected": 0, "shed": 0, "timed_out": 0, "failed": 0, "lost": 0}
    assert summary.elapsed_s > 0.38


def asked(path="/v1/chat/completions", **fields):
    content = {"prompt": "once"} if path.endswith("/v1/completions") else {"messages": [{"role": "user", "content": "tell me"}]}
    return ClientBody(path=path, document={"model": "any", "stream": True} | content | fields)


async def test_bodies_are_sent_as_they_are(tmp_path):
    bodies = [asked(), asked("/v1/completions", max_tokens=4), asked(stream=False, n=2), asked(n=2)]
    arrivals = [arrival(output=9, max_tokens=4 * (i == 1), body=body) for i, body in enumerate(bodies)]
    write_plan(tmp_path / "plan", arrivals, LoadSpec(url="http://x", model="demo"), tmp_path / "results")
    assert read_plan(tmp_path / "plan")[1] == arrivals
    async with engine() as url:
        results, _ = await send(url, arrivals)
    assert [r.outcome for r in results] == ["completed"] * 4
    assert [r.output_tokens for r in results] == [9, 4, 18, 18]
    assert [r.tokens_each for r in results] == [9, 4, 9, 9]
    assert [r.capped for r in results] == [False, True, False, False]
    assert [r.streamed for r in results] == [True, True, False, True]
    assert results[2].ttft_ms == results[2].tpot_ms == -1.0
    assert results[3].tpot_ms == pytest.approx(results[0].tpot_ms, abs=3.0), "two answers side by side are no faster than one"


async def test_a_refusal_says_when_to_come_back():
    async def answer(_request):
        return web.json_response({"error": {"code": "queue_full", "message": "later"}}, status=429, headers={"retry-after": "7"})

    async with plain_server(answer) as url:
        results, _ = await send(url, [arrival(body=asked(stream=False)), arrival()])
    assert [(r.outcome, r.retry_after_s) for r in results] == [("rejected", 7.0)] * 2


async def test_an_answer_given_whole_that_is_none_has_failed():
    async def answer(_request):
        return web.json_response({"choices": []})

    async with plain_server(answer) as url:
        results, _ = await send(url, [arrival(body=asked(stream=False))])
    assert (results[0].outcome, results[0].detail[:7]) == ("failed", "neither")


async def test_the_load_is_open_a_slow_answer_delays_nobody():
    arrived = []
    loop = asyncio.get_running_loop()
    release = asyncio.Event()

    async def answer(_request):
        arrived.append(loop.time())
        if len(arrived) == 5:
            release.set()
        await release.wait()
        return web.json_response({"error": {"code": "queue_full", "message": "later"}}, status=429)

    async with plain_server(answer) as url:
        results, _ = await send(url, [arrival(0.05 * i) for i in range(5)])
    assert len(arrived) == 5, "all were sent although the first had no answer yet"
    assert {r.outcome for r in results} == {"rejected"}
    assert results[0].total_ms > results[4].total_ms


@asynccontextmanager
async def plain_server(handler):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("status:500", "failed"),
        ("reset-before", "lost"),
        ("reset-after:3", "lost"),
        ("half-sse:3", "failed"),
        ("garbage", "failed"),
        ("html", "failed"),
    ],
)
async def test_a_misbehaving_engine_gives_each_request_one_outcome(fault, outcome):
    async with engine(fault) as url:
        results, summary = await send(url, [arrival(0.01 * i) for i in range(3)])
    assert [r.outcome for r in results] == [outcome] * 3, [r.detail for r in results]
    assert all(r.detail for r in results)
    assert sum(summary.outcomes.values()) == 3


async def test_what_has_no_end_when_waiting_ends_is_lost():
    async with engine("stall:2") as url:
        results, _ = await send(url, [arrival()], drain_s=0.3)
    assert results[0].outcome == "lost"
    assert "no end within 0.3 s" in results[0].detail
    assert results[0].ttft_ms > 0


async def test_nobody_there_is_lost():
    results, _ = await send("http://127.0.0.1:9", [arrival()])
    assert results[0].outcome == "lost"
    assert "Connect" in results[0].detail


async def test_a_blocked_loop_is_noticed():
    async with engine() as url:
        generator = LoadGenerator([arrival(0.0), arrival(0.5)], LoadSpec(url=url, model="demo", length_channel="sim"), SystemClock())
        running = asyncio.create_task(generator.run())
        await asyncio.sleep(0.1)
        clock = SystemClock()
        until_s = clock.now_s() + 0.4
        while clock.now_s() < until_s:
            pass
        summary = await running
    assert summary.max_gap_s > 0.3
    assert summary.noisy


def test_the_body_tells_only_the_engine_the_true_length():
    body = orjson.loads(request_body(arrival(output=77), LoadSpec(url="u", model="m", length_channel="sim")))
    assert body["sim"] == {"output_tokens": 77}
    assert body["max_tokens"] == 1024
    assert body["stream_options"] == {"include_usage": True}
    vllm = orjson.loads(request_body(arrival(output=77), LoadSpec(url="u", model="m", length_channel="vllm")))
    assert vllm["vllm_xargs"] == {"hmas_output_tokens": 77}
    assert b"77" not in request_body(arrival(output=77), LoadSpec(url="u", model="m"))


def test_headers_declare_the_slo_and_the_tenants_key():
    headers = request_headers(arrival(), LoadSpec(url="u", model="m", api_keys={"aurora": "k1"}))
    assert headers["x-slo-ttft-ms"] == "2000"
    assert headers["x-slo-tpot-ms"] == "100"
    assert headers["authorization"] == "Bearer k1"
    assert "authorization" not in request_headers(arrival(tenant="birch"), LoadSpec(url="u", model="m", api_keys={"aurora": "k1"}))
    assert set(request_headers(msgspec.structs.replace(arrival(), declares=False), LoadSpec(url="u", model="m"))) == {"content-type"}


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (429, {"error": {"code": "queue_full", "message": "m"}}, "rejected"),
        (400, {"error": {"code": "context_length_exceeded", "message": "m"}}, "rejected"),
        (503, {"error": {"code": "no_engine", "message": "m"}}, "rejected"),
        (504, {"error": {"code": "slo_unattainable", "message": "m"}}, "shed"),
        (504, {"error": {"code": "deadline_exceeded", "message": "m"}}, "timed_out"),
        (502, {"error": {"code": "engine_failed", "message": "m"}}, "failed"),
        (500, "plain text", "failed"),
    ],
)
def test_refusals(status, body, outcome):
    assert judge_refusal(status, json.dumps(body).encode() if isinstance(body, dict) else body.encode())[0] == outcome


def event(**kwargs):
    return b"data: " + orjson.dumps({"choices": [{"index": 0, **kwargs}]}) + b"\n\n"


STREAM = (
    event(delta={"role": "assistant", "content": ""}, finish_reason=None)
    + event(delta={"content": "one"}, finish_reason=None)
    + b": a comment\n\n"
    + event(delta={"content": " two"}, finish_reason=None)
    + event(delta={}, finish_reason="stop")
    + b'data: {"choices": [], "usage": {"completion_tokens": 9}}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_the_reader_does_not_care_where_chunks_are_cut(size):
    reader = AnswerReader()
    for i in range(0, len(STREAM), size):
        reader.feed(STREAM[i : i + size], float(i))
    reader.end()
    assert judge_stream(reader) == ("completed", "")
    assert reader.tokens == 9
    assert reader.first_s > 0 or size == 10_000
    assert reader.last_s >= reader.first_s


def test_the_first_content_counts_not_the_role():
    reader = AnswerReader()
    reader.feed(event(delta={"role": "assistant", "content": ""}), 1.0)
    assert reader.first_s == -1.0
    reader.feed(event(delta={"tool_calls": [{"index": 0}]}), 2.0)
    assert reader.first_s == 2.0


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (event(delta={"content": "x"}), "lost"),
        (b'data: {"error": {"code": "engine_failed", "message": "m"}}\n\n', "failed"),
        (b'data: {"error": {"code": "deadline_exceeded", "message": "m"}}\n\n', "timed_out"),
        (b"data: {oops\n\n", "failed"),
        (b"data: [1]\n\n", "failed"),
        (b"<html>no</html>\n", "failed"),
        (event(delta={"content": "x"}) + b"data: {", "failed"),
    ],
)
def test_streams_that_do_not_end_well(data, outcome):
    reader = AnswerReader()
    reader.feed(data, 1.0)
    reader.end()
    assert judge_stream(reader)[0] == outcome


async def test_the_process_reads_a_plan_and_reports(tmp_path):
    async with engine() as url:
        load = LoadSpec(url=url, model="demo", length_channel="sim", drain_s=10.0)
        arrivals = [arrival(0.1 * i) for i in range(8)]
        write_plan(tmp_path / "plan.jsonl", arrivals, load, tmp_path / "results.jsonl")
        assert read_plan(tmp_path / "plan.jsonl")[1] == arrivals
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hmas.loadgen.process", str(tmp_path / "plan.jsonl"), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[-1]["outcomes"]["completed"] == 8
    assert any(line.get("sent") for line in lines[:-1]), "progress was reported"
    assert [r.outcome for r in read_results(tmp_path / "results.jsonl")] == ["completed"] * 8
