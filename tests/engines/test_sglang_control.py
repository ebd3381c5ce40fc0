"""The control plugin inside a real SGLang: what a changed knob changes, and what cannot harm the engine."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hmas_lab.memory_bus import MemoryBus
from sglang_client import COMPLETIONS, ask, document, prompt, read, rid, same, start, tokens, until
from sglang_server import CHUNK, MAX_RUNNING, TOKEN, served

from hmas.controller.admin.client import AdminClient
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.config.schema import AgentsConfig, Config, EngineConfig
from hmas.controller.config.section import GatewayConfig
from hmas.controller.gateway.process import serve
from hmas.controller.runtime.clock import SystemClock
from hmas.engines.base import Knobs
from hmas.engines.client import EngineClient
from hmas.engines.control import CONTROL_PATH
from hmas.engines.registry import connect_engine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

OPEN = Knobs(n_run=MAX_RUNNING, token_budget=CHUNK)
ABORT = b'"POST /abort_request'
PREFILL = re.compile(r"Prefill batch, #new-seq: \d+, #new-token: (\d+)")


@pytest.fixture(scope="module", params=["one after the other", "overlapping"])
def server(request, tmp_path_factory):
    """SGLang's two ways to go from step to step, each with its log."""
    log = tmp_path_factory.mktemp("sglang") / "sglang.log"
    options = ("--disable-overlap-schedule",) if request.param == "one after the other" else ()
    for url in served(log, plugin=True, options=options):
        yield url, log


@pytest.fixture
async def engine(server):
    """The engine with every knob open, before and after."""
    engine = await connect_engine(name="s1", url=server[0], control_token=TOKEN)
    assert (await engine.apply_knobs(OPEN)).refused == {}
    yield engine
    assert (await engine.apply_knobs(OPEN)).refused == {}
    await engine.close()


@pytest.fixture
async def route(server):
    """Raw calls of the plugin's route."""
    client = EngineClient(name="raw", url=server[0], api_key=TOKEN)
    yield client
    await client.close()


def prefills(log: Path) -> list[int]:
    """Tokens of each prefill step, by the engine's own log."""
    return [int(count) for count in PREFILL.findall(log.read_text())]


async def state(route) -> dict:
    status, data = await route.get(CONTROL_PATH)
    assert status == 200, data
    return orjson.loads(data)


async def order(route, **fields) -> tuple[int, dict]:
    status, data = await route.post(CONTROL_PATH, orjson.dumps(fields))
    return status, orjson.loads(data)


async def test_what_it_says(engine, route):
    assert (await state(route))["priority"] is True
    able, snapshot = engine.capabilities, await engine.snapshot(0.0)
    assert able.live_knobs == ("n_run", "token_budget")
    assert (able.kind, able.priority, able.control) == ("sglang", True, "live: n_run, token_budget")
    assert (snapshot.max_num_seqs_ceiling, snapshot.max_num_batched_tokens_ceiling) == (MAX_RUNNING, CHUNK)


async def test_the_cap_holds_and_lowering_it_ends_nobody(engine):
    work = [start(ask(engine, number, prompt(number, 20), 100 + 10 * number)) for number in range(6)]
    await until(engine, lambda now: now.running == 6)
    assert (await engine.apply_knobs(Knobs(n_run=2))).applied == {"n_run": 2}
    late = [start(ask(engine, 10 + number, prompt(10 + number, 20), 5)) for number in range(3)]
    await until(engine, lambda now: now.running <= 2)
    while (now := await engine.snapshot(0.0)).waiting:
        assert now.running <= 2
    assert [len(tokens(answer)) for answer in await asyncio.gather(*late)] == [5, 5, 5]
    assert [len(tokens(answer)) for answer in await asyncio.gather(*work)] == [100 + 10 * number for number in range(6)]


@pytest.mark.parametrize("way", ["plugin's route", "SGLang's own"])
async def test_a_raised_cap_lets_the_waiting_in(engine, route, way):
    await engine.apply_knobs(Knobs(n_run=1))
    first = start(ask(engine, 0, prompt(20, 20), 200))
    await until(engine, lambda now: now.running == 1)
    others = [start(ask(engine, number, prompt(20 + number, 20), 5)) for number in range(1, 4)]
    await until(engine, lambda now: now.waiting == 3)
    if way == "SGLang's own":
        status, data = await route.post("/set_internal_state", orjson.dumps({"server_args": {"pp_max_micro_batch_size": 4}}))
        assert (status, orjson.loads(data)) == (200, [True])
    else:
        await engine.apply_knobs(Knobs(n_run=4))
    assert [len(tokens(answer)) for answer in await asyncio.gather(*others)] == [5, 5, 5]
    assert not first.done()
    assert await engine.abort(rid(0))
    await first


async def test_tokens_per_prefill_step(engine, server):
    async def steps(first: int) -> list[int]:
        before = len(prefills(server[1]))
        await asyncio.gather(*(ask(engine, number, prompt(number, 400), 2) for number in range(first, first + 3)))
        return prefills(server[1])[before:]

    wide = await steps(30)
    assert max(wide) >= 400
    await engine.apply_knobs(Knobs(token_budget=48))
    assert (await engine.snapshot(0.0)).max_num_batched_tokens == 48
    narrow = await steps(40)
    assert max(narrow) == 48
    assert len(narrow) >= 25
    assert sum(narrow) == sum(wide) == 1200


async def test_a_hundred_changes_under_load(engine, route):
    """No request fails, and every greedy answer is the one that an undisturbed run gives, as far as that can be told."""
    rng = np.random.default_rng(7)
    asks = [(prompt(100 + i, int(rng.integers(5, 150))), int(rng.integers(5, 30))) for i in range(16)]

    async def run(first: int) -> list[dict]:
        return await asyncio.gather(*(ask(engine, first + i, ids, count) for i, (ids, count) in enumerate(asks)))

    undisturbed = await run(100)
    runs = [start(run(200))]
    await until(engine, lambda now: now.running > 0)
    for _ in range(100):
        knobs = {"n_run": int(rng.integers(1, MAX_RUNNING + 1)), "token_budget": int(rng.integers(16, CHUNK + 1))}
        status, answer = await order(route, knobs=knobs)
        assert (status, answer["applied"]) == (200, knobs)
        if runs[-1].done():
            runs.append(start(run(200)))
    await engine.apply_knobs(OPEN)
    for answers in await asyncio.gather(*runs):
        assert all(same(answer, calm) for answer, calm in zip(answers, undisturbed, strict=True))


async def test_requests_of_every_kind_come_through(engine, route):
    """Streams, several answers or prompts, grammars, penalties, prompts in pieces, prefixes from the cache: all under random changes."""
    rng = np.random.default_rng(9)
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    kinds: list[dict[str, Any]] = [
        {},
        {"stream": True},
        {"n": 2, "temperature": 1.0},
        {"prompt": [prompt(1, 40), prompt(2, 9)]},
        {"json_schema": schema, "ignore_eos": False},
        {"presence_penalty": 1.0},
        {"prompt": prompt(3, 700)},
        {"prompt": prompt(3, 700), "cache_salt": "shared"},
    ]

    async def one(number: int) -> None:
        body = document(prompt(number, 30), 10 + number % 20, return_token_ids=False, **kinds[number % len(kinds)])
        response = await engine.send(COMPLETIONS, body, {}, request_id=rid(number), priority=number % 5)
        data = await read(response)
        assert response.status == 200, data
        assert b'"abort"' not in data

    async def round_of_all() -> None:
        await asyncio.gather(*(one(number) for number in range(40)))

    rounds = [start(round_of_all())]
    for _ in range(40):
        if rounds[-1].done():
            rounds.append(start(round_of_all()))
        knobs = {"n_run": int(rng.integers(1, MAX_RUNNING + 1)), "token_budget": int(rng.integers(16, CHUNK + 1))}
        status, answer = await order(route, knobs=knobs)
        assert (status, answer["applied"]) == (200, knobs)
    await engine.apply_knobs(OPEN)
    await asyncio.gather(*rounds)
    await until(engine, lambda now: now.running + now.waiting == 0 and now.kv_usage == 0)


async def test_aborts_and_changes_leave_nothing_behind(engine, route):
    """Requests that end in every way while the scheduler is moved; the KV cache is free of them afterwards."""
    rng = np.random.default_rng(8)
    responses = []
    for number in range(300, 312):
        responses.append(start(engine.send(COMPLETIONS, document(prompt(number, 60), 400), {}, request_id=rid(number))))
    await until(engine, lambda now: now.running > 0)
    for number in rng.permutation(range(300, 312)):
        await order(route, knobs={"n_run": int(rng.integers(1, MAX_RUNNING + 1))})
        assert await engine.abort(rid(int(number)))
    for response in responses:
        assert orjson.loads(await read(await response))["choices"][0]["finish_reason"] == "abort"
    snapshot = await until(engine, lambda now: now.running + now.waiting == 0 and now.kv_usage == 0)
    assert snapshot.healthy


async def test_the_token_is_asked_for(server):
    for token in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
        engine = await connect_engine(name="s1", url=server[0], control_token=token)
        assert (await engine.snapshot(0.0)).healthy
        # What stock SGLang does for anybody it does still.
        assert engine.capabilities.live_knobs == ("n_run",)
        assert "token" in engine.capabilities.control
        await engine.close()
        client = EngineClient(name="raw", url=server[0], api_key=token)
        assert (await client.get(CONTROL_PATH))[0] == 401
        assert (await order(client, knobs={"n_run": 2}))[0] == 401
        await client.close()


@pytest.mark.parametrize("seal", [0, -1, 2**62, 1.5])
async def test_nobody_slips_an_order_past_the_guard(engine, route, seal):
    numbers = {"hmas.seal": seal, "hmas.serial": 1, "hmas.knob.n_run": 1}
    before = (await state(route))["knobs"]
    status, data = await route.post("/set_internal_state", orjson.dumps({"server_args": numbers}))
    assert (status, orjson.loads(data)) == (200, [False])
    assert (await state(route))["knobs"] == before


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{}", "body"),
        (b'{"knobs": {}}', "body"),
        (b'{"knobs": {"n_run": 9}}', "knobs.n_run"),
        (b'{"knobs": {"n_run": 0}}', "knobs.n_run"),
        (b'{"knobs": {"n_run": 4, "token_budget": 513}}', "knobs.token_budget"),
        (b'{"knobs": {"n_run": true}}', "knobs.n_run"),
        (b'{"knobs": {"n_run": ' + b"9" * 30 + b"}}", "knobs.n_run"),
        (b'{"knobs": {"pp_max_micro_batch_size": 1}}', "knobs.pp_max_micro_batch_size"),
        (b'{"knobs": {"n_run": 4}, "evict": ["room"]}', "evict"),
        (b"x" * 10_000_000, "body"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[:40].decode(),
)
async def test_a_wrong_order_changes_nothing(route, body, field):
    before = (await state(route))["knobs"]
    status, data = await route.post(CONTROL_PATH, body)
    assert status == 400
    assert field in orjson.loads(data)["refused"]
    assert (await state(route))["knobs"] == before


async def test_through_a_gateway(server, route, tmp_path):
    """Requests come back, an operator's knobs are in force in the engine, and a client that leaves frees the engine at once."""
    config = Config(
        state_dir=str(tmp_path),
        gateway=GatewayConfig(port=0, admin_port=0, no_auth=True, drain_s=1),
        engines=[EngineConfig(name="gpu-0", url=server[0], control_token_env="ENGINE_TOKEN")],
        agents=AgentsConfig(enabled=False),
    )
    stop, ready, bus = asyncio.Event(), asyncio.get_running_loop().create_future(), MemoryBus()
    env = {"ENGINE_TOKEN": TOKEN}
    gateway = asyncio.create_task(serve(config, bus=bus, clock=SystemClock(), on_ready=ready.set_result, stop=stop, env=env))
    addresses = await ready
    admin, client = AdminClient(addresses.admin_url, token_file=tmp_path / ADMIN_TOKEN_FILE), EngineClient(name="client", url=addresses.url)

    async def in_force(*values: int) -> None:
        deadline_s = time.monotonic() + 20
        while (now := tuple(knob["value"] for knob in (await state(route))["knobs"].values())) != values:
            assert time.monotonic() < deadline_s, now

    (item,) = await asyncio.to_thread(admin.engines)
    assert (item["kind"], item["version"]) == ("sglang", "0.5.23")
    assert item["control"].startswith("live: n_run, token_budget")
    await asyncio.to_thread(admin.force_knobs, "gpu-0", n_run=3, token_budget=128, author="a", reason="r")
    await in_force(3, 128)
    (item,) = await asyncio.to_thread(admin.engines)
    assert [item[name]["acts"] for name in ("n_run", "token_budget")] == ["engine and window", "engine"]

    async def through(number: int, **fields: object):
        return await client.send(COMPLETIONS, document(prompt(700 + number, 30), 10, **fields), {})

    responses = await asyncio.gather(*(through(number, priority=number - 4) for number in range(8)))
    assert [len(tokens(orjson.loads(await read(response)))) for response in responses] == [10] * 8
    streamed = await read(await through(8, stream=True, return_token_ids=False))
    assert streamed.endswith(b"data: [DONE]\n\n")
    leaving = await through(9, stream=True, return_token_ids=False, max_tokens=4000)
    async for _ in leaving.chunks():
        break
    aborts = server[1].read_bytes().count(ABORT)
    await leaving.close()
    deadline_s = time.monotonic() + 20
    while (await state(route))["counters"]["running"]:
        assert time.monotonic() < deadline_s
    # A closed connection alone would end it too, but seconds later.
    assert server[1].read_bytes().count(ABORT) == aborts + 1
    await asyncio.to_thread(admin.release_knobs, "gpu-0")
    await in_force(MAX_RUNNING, CHUNK)
    await client.close()
    stop.set()
    await gateway
    await bus.close()
