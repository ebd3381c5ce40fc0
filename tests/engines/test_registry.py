"""Adapters against the real embedded engine, as it is, misbehaving, gone and back."""

import asyncio

import orjson
import pytest
from aiohttp import web
from typing_kit import known

from hmas.engines.base import Engine, Knobs
from hmas.engines.client import EngineClient
from hmas.engines.errors import EngineUnavailable, StaleConnection
from hmas.engines.openai import OpenAIEngine, with_priority
from hmas.engines.registry import connect_engine
from hmas.engines.sim.adapter import SimEngine
from hmas.engines.vllm.adapter import VllmEngine, capacity_tokens, parse_metrics

CHAT = "/v1/chat/completions"


def body(**fields) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True} | fields)


async def read(response) -> bytes:
    try:
        return b"".join([chunk async for chunk in response.chunks()])
    finally:
        await response.close()


@pytest.fixture
async def engine(sim):
    engine = await connect_engine(name="e1", url=sim.url)
    yield engine
    await engine.close()


@pytest.fixture
async def adapt():
    """Makes an adapter of a given kind, without asking the engine what it is."""
    made = []

    def make(sim, adapter=OpenAIEngine, **options):
        made.append(adapter(EngineClient(name="e1", url=sim.url, **options)))
        return made[-1]

    yield make
    for engine in made:
        await engine.close()


async def test_detection_and_capabilities(engine):
    checked: Engine = engine
    assert checked.capabilities.kind == "sim"
    assert checked.capabilities.version == "sim/fast"
    assert checked.capabilities.live_knobs == ("n_run", "token_budget")
    assert checked.capabilities.abort
    assert not checked.capabilities.priority


async def test_a_stream_passes_unchanged(sim, engine):
    response = await engine.send(CHAT, body(sim={"output_tokens": 6}), {}, request_id="req-1")
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = sim.decode(await read(response))
    assert events[0]["id"] == "chatcmpl-req-1"
    assert len(events) == 8


async def test_headers_are_passed_and_the_request_id_of_the_caller_wins(sim, engine):
    response = await engine.send(CHAT, body(sim={"output_tokens": 1}), {"X-Request-ID": "theirs"}, request_id="ours")
    assert sim.decode(await read(response))[0]["id"] == "chatcmpl-theirs"


async def test_snapshot_and_knobs(sim, engine):
    report = await engine.apply_knobs(Knobs(n_run=3, token_budget=10_000))
    assert report.applied == {"n_run": 3}
    assert set(report.refused) == {"token_budget"}
    response = await engine.send(CHAT, body(sim={"output_tokens": 1000}), {}, request_id="r")
    await sim.until(lambda: sim.model.running == 1)
    snapshot = await engine.snapshot(123.5)
    assert (snapshot.engine, snapshot.taken_s, snapshot.healthy, snapshot.running) == ("e1", 123.5, True, 1)
    assert (snapshot.max_num_seqs, snapshot.max_num_seqs_ceiling, snapshot.kv_capacity_tokens) == (3, 16, 4096)
    await response.close()
    await sim.until(lambda: sim.model.idle)


async def test_abort_reaches_the_engine(sim, engine):
    response = await engine.send(CHAT, body(sim={"output_tokens": 1000}), {}, request_id="fixed-0001")
    await sim.until(lambda: sim.model.running == 1)
    assert await engine.abort("fixed-0001")
    assert sim.model.idle
    assert b'"finish_reason":"abort"' in await read(response)
    assert not await engine.abort("fixed-0001")


async def test_closing_a_response_makes_the_engine_see_its_client_leave(sim, adapt):
    engine = adapt(sim)
    response = await engine.send(CHAT, body(sim={"output_tokens": 1000}), {}, request_id="r")
    async for _ in response.chunks():
        break
    await response.close()
    await sim.until(lambda: sim.model.idle)
    assert not await engine.abort("r")
    assert "n_run" in (await engine.apply_knobs(Knobs(n_run=1))).refused


async def test_a_finished_connection_is_used_again(sim, engine):
    for _ in range(3):
        await read(await engine.send(CHAT, body(sim={"output_tokens": 1}), {}, request_id="r"))
    assert len(known(sim.runner.server).connections) == 1


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/nothing"])
async def test_call(engine, path):
    status, data = await engine.call("GET", path)
    assert (status, bool(data)) == {"/v1/models": (200, True), "/health": (200, False), "/nothing": (404, True)}[path]


async def test_an_error_of_the_engine_is_an_answer(engine):
    response = await engine.send(CHAT, b"{", {}, request_id="r")
    assert response.status == 400
    assert b"not JSON" in await read(response)


async def test_a_body_beyond_a_mebibyte(sim, engine):
    response = await engine.send(CHAT, body(padding="x" * (2 << 20), sim={"output_tokens": 1}), {}, request_id="r")
    assert sim.decode(await read(response))[-1] == "[DONE]"


@pytest.mark.parametrize("fault", ["html", "garbage"])
async def test_what_is_no_protocol_is_passed_on_for_the_gateway_to_judge(sim, engine, fault):
    await sim.post("/sim/fault", {"fault": fault})
    response = await engine.send(CHAT, body(), {}, request_id="r")
    assert response.status == 200
    assert await read(response)


@pytest.mark.parametrize("fault", ["html", "garbage", "status:500", "reset-before"])
@pytest.mark.parametrize("adapter", [OpenAIEngine, SimEngine, VllmEngine])
async def test_snapshots_of_a_misbehaving_engine(sim, adapt, adapter, fault):
    engine = adapt(sim, adapter)
    assert (await engine.snapshot(1.0)).healthy
    await sim.post("/sim/fault", {"fault": fault, "everywhere": True})
    snapshot = await engine.snapshot(2.0)
    assert (snapshot.healthy, snapshot.taken_s) == (False, 2.0)
    assert "e1" in snapshot.detail
    assert not await engine.abort("r")
    report = await engine.apply_knobs(Knobs(n_run=2))
    assert report.applied == {}
    assert set(report.refused) == {"n_run"}
    await sim.post("/sim/fault", {"fault": None})
    assert (await engine.snapshot(3.0)).healthy


async def test_reset_before_the_head(sim, adapt):
    engine = adapt(sim)
    await sim.post("/sim/fault", {"fault": "reset-before"})
    with pytest.raises(EngineUnavailable, match="e1"):
        await engine.send(CHAT, body(), {}, request_id="r")


async def test_a_stale_pooled_connection_is_told_and_the_next_request_gets_a_new_one(sim, adapt):
    engine = adapt(sim)
    await read(await engine.send(CHAT, body(sim={"output_tokens": 1}), {}, request_id="a"))
    await sim.post("/sim/fault", {"fault": "reset-before", "times": 1})
    with pytest.raises(StaleConnection):
        await engine.send(CHAT, body(sim={"output_tokens": 1}), {}, request_id="b")
    response = await engine.send(CHAT, body(sim={"output_tokens": 1}), {}, request_id="b")
    assert sim.decode(await read(response))[-1] == "[DONE]"


async def test_a_fresh_connection_is_tried_once_only(sim, adapt):
    engine = adapt(sim)
    await sim.post("/sim/fault", {"fault": "reset-before", "times": 1})
    with pytest.raises(EngineUnavailable):
        await engine.send(CHAT, body(), {}, request_id="r")


async def test_reset_in_the_middle(sim, engine):
    await sim.post("/sim/fault", {"fault": "reset-after:3"})
    response = await engine.send(CHAT, body(sim={"output_tokens": 10}), {}, request_id="r")
    got = []

    async def consume() -> None:
        async for chunk in response.chunks():
            got.append(chunk)

    with pytest.raises(EngineUnavailable, match="broke off"):
        await consume()
    await response.close()
    assert b"".join(got).count(b'"content":" ') == 3


async def test_half_an_event_ends_cleanly(sim, engine):
    await sim.post("/sim/fault", {"fault": "half-sse:1"})
    response = await engine.send(CHAT, body(sim={"output_tokens": 10}), {}, request_id="r")
    assert (await read(response)).endswith(b'"del')


async def test_silence_in_the_middle(sim, adapt):
    engine = adapt(sim, idle_timeout_s=0.05)
    await sim.post("/sim/fault", {"fault": "stall:2"})
    response = await engine.send(CHAT, body(sim={"output_tokens": 10}), {}, request_id="r")
    with pytest.raises(EngineUnavailable, match=r"silent for 0\.05 s"):
        await read(response)


async def test_a_reader_who_takes_his_time_is_no_silence_of_the_engine(sim, adapt):
    engine = adapt(sim, idle_timeout_s=0.03)
    response = await engine.send(CHAT, body(sim={"output_tokens": 3}), {}, request_id="r")
    got = []
    async for chunk in response.chunks():
        got.append(chunk)
        await asyncio.sleep(0.08)
    assert sim.decode(b"".join(got))[-1] == "[DONE]"
    await response.close()


async def test_an_answer_without_a_stream_may_take_longer_than_the_idle_time(sim, adapt):
    engine = adapt(sim, idle_timeout_s=0.02)
    response = await engine.send(CHAT, body(stream=False, sim={"output_tokens": 80}), {}, request_id="r")
    assert orjson.loads(await read(response))["usage"]["completion_tokens"] == 80


async def test_an_engine_that_goes_away_and_comes_back(start_sim):
    sim = await start_sim()
    engine = await connect_engine(name="e1", url=sim.url)
    await sim.stop()
    snapshot = await engine.snapshot(1.0)
    assert not snapshot.healthy
    assert "e1" in snapshot.detail
    assert str(sim.port) not in snapshot.detail, "clients see this text"
    with pytest.raises(EngineUnavailable):
        await engine.send(CHAT, body(), {}, request_id="r")
    with pytest.raises(EngineUnavailable):
        await engine.call("GET", "/v1/models")
    assert not await engine.abort("r")
    back = await start_sim(port=sim.port, order="priority")
    assert (await engine.snapshot(2.0)).healthy
    assert engine.capabilities.priority, "it is asked again what it is"
    assert back.decode(await read(await engine.send(CHAT, body(sim={"output_tokens": 1}), {}, request_id="r")))[-1] == "[DONE]"
    await engine.close()


async def test_an_engine_that_is_not_there_yet(unused_tcp_port):
    engine = await connect_engine(name="e1", url=f"http://127.0.0.1:{unused_tcp_port}")
    assert not (await engine.snapshot(0.0)).healthy
    assert engine.capabilities.kind == "openai"
    await engine.close()


async def test_priority_is_written_only_for_an_engine_that_orders_by_it(start_sim):
    sim = await start_sim(order="priority", n_run=1)
    engine = await connect_engine(name="e1", url=sim.url)
    assert engine.capabilities.priority
    first = await engine.send(CHAT, body(sim={"output_tokens": 30}), {}, request_id="first")
    await sim.until(lambda: sim.model.running == 1)
    ended = []

    async def finish(name: str, priority: int) -> None:
        response = await engine.send(CHAT, body(sim={"output_tokens": 2}), {}, request_id=name, priority=priority)
        await read(response)
        ended.append(name)

    tasks = [asyncio.create_task(finish("later", 5))]
    await sim.until(lambda: sim.model.waiting == 1)
    tasks.append(asyncio.create_task(finish("sooner", -5)))
    await asyncio.gather(read(first), *tasks)
    assert ended == ["sooner", "later"]
    await engine.close()


def test_with_priority():
    assert orjson.loads(with_priority(b'{"a": 1, "priority": 9}', -2)) == {"a": 1, "priority": -2}
    assert with_priority(b"no json", 1) == b"no json"
    assert with_priority(b"[1]", 1) == b"[1]"
    deep = b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}"
    assert with_priority(deep, 1) == deep, "it is read, and cannot be written"


@pytest.mark.parametrize("kind", ["openai", "vllm", "sim"])
async def test_a_named_kind_is_not_asked_for(sim, kind):
    engine = await connect_engine(name="e1", url=sim.url, kind=kind)
    assert engine.capabilities.kind == kind
    snapshot = await engine.snapshot(5.0)
    assert snapshot.healthy
    assert snapshot.kv_capacity_tokens == (None if kind == "openai" else 4096)
    assert snapshot.caches_prefixes is (None if kind == "openai" else False)
    await engine.close()


METRICS = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a, b"} 3.0
vllm:num_requests_running{engine="1",model_name="a, b"} 4.0
vllm:num_requests_waiting{engine="0",model_name="a, b"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0",num_gpu_blocks="100",other="None"} 1.0
vllm:num_preemptions_total{engine="0"} 5.0
vllm:generation_tokens_total{engine="0"} 1.5e+06
vllm:prompt_tokens_total nonsense
half a li"""


def test_the_cache_of_two_engine_cores():
    """Each reports the blocks of both, and newer versions its own tokens."""
    for labels in ('num_gpu_blocks="300",block_size="16"', 'num_gpu_blocks="300",block_size="16",kv_cache_size_tokens="2400"'):
        text = "".join(f'vllm:cache_config_info{{engine="{core}",{labels}}} 1.0\n' for core in (0, 1))
        assert capacity_tokens(parse_metrics(text.encode())["vllm:cache_config_info"]) == 4800


@pytest.fixture
async def fake_vllm():
    """vLLM's control surface, with the key demanded and the development endpoints open; the answers are recorded ones.

    Yields its address, the ids that it was asked to abort, and the priorities of completions: in the header, and in the body.
    """
    aborted = []
    priorities = []

    async def complete(request):
        priorities.append((request.headers.get("X-Vllm-Priority"), (await request.json()).get("priority")))
        return web.json_response({"choices": []})

    async def abort(request):
        aborted.append((await request.json())["request_ids"])
        return web.Response()

    @web.middleware
    async def key(request, handler):
        if request.headers.get("Authorization") != "Bearer secret":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    def answer(**document):
        async def handle(_request):
            return web.json_response(document)

        return handle

    async def metrics(_request):
        return web.Response(body=METRICS)

    scheduler = {"max_num_seqs": 32, "max_num_batched_tokens": 1024, "policy": "priority"}
    app = web.Application(middlewares=[key])
    app.router.add_get("/version", answer(version="0.32.0"))
    app.router.add_get("/server_info", answer(vllm_config={"scheduler_config": scheduler}))
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/models", answer(data=[]))
    app.router.add_post("/abort_requests", abort)
    app.router.add_post("/v1/{tail:.*}", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", aborted, priorities
    await runner.cleanup()


async def test_vllm_with_its_development_endpoints(fake_vllm):
    url, aborted, _ = fake_vllm
    engine = await connect_engine(name="v", url=url, api_key="secret")
    assert (engine.capabilities.kind, engine.capabilities.version) == ("vllm", "0.32.0")
    assert engine.capabilities.priority
    assert engine.capabilities.live_knobs == ()
    snapshot = await engine.snapshot(9.0)
    assert (snapshot.running, snapshot.waiting, snapshot.kv_usage, snapshot.kv_capacity_tokens) == (7, 2, 0.5, 1600)
    assert snapshot.caches_prefixes is False
    assert (snapshot.max_num_seqs, snapshot.max_num_batched_tokens) == (64, 1024), "each of the two cores runs 32, as each step has 1024"
    assert "2 data-parallel engine cores" in (await engine.apply_knobs(Knobs(n_run=8))).refused["n_run"]
    assert (snapshot.preemptions_total, snapshot.generation_tokens_total, snapshot.prompt_tokens_total) == (5, 1_500_000, 0)
    assert await engine.abort("abc")
    assert "chatcmpl-abc" in aborted[0]
    await engine.close()


async def test_vllm_takes_the_priority_of_a_messages_request_from_a_header(fake_vllm):
    url, _, priorities = fake_vllm
    engine = await connect_engine(name="v", url=url, api_key="secret")
    for path in (CHAT, "/v1/messages"):
        for priority in (10, 0, -3):
            await read(await engine.send(path, body(), {}, request_id="r", priority=priority))
    await engine.close()
    assert priorities == [(None, 10), (None, None), (None, -3), ("10", None), (None, None), ("-3", None)]


async def test_a_wrong_key_is_named(fake_vllm):
    engine = await connect_engine(name="v", url=fake_vllm[0], api_key="wrong")
    snapshot = await engine.snapshot(1.0)
    assert not snapshot.healthy
    assert "401" in snapshot.detail
    await engine.close()


def test_metrics_of_garbage_are_empty():
    series = parse_metrics(b"\x00\xff<html>\nvllm:num_requests_running{ 3\nvllm:num_requests_running 2\n")
    assert series["vllm:num_requests_running"] == [({}, 2.0)]
