"""The control plugin inside a real vLLM: what a changed knob changes, and what cannot harm the engine."""

import asyncio
import time
from uuid import uuid4

import numpy as np
import orjson
import pytest
from hmas_lab.memory_bus import MemoryBus
from vllm_server import control_token

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

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120)]

COMPLETIONS = "/v1/completions"
OPEN = Knobs(n_run=32, token_budget=1024)


@pytest.fixture
async def engine(vllm_url):
    """The engine with every knob open, before and after."""
    engine = await connect_engine(name="v1", url=vllm_url, control_token=control_token())
    assert (await engine.apply_knobs(OPEN)).refused == {}
    yield engine
    assert (await engine.apply_knobs(OPEN)).refused == {}
    await engine.close()


@pytest.fixture
async def route(vllm_url):
    """Raw calls of the plugin's route."""
    client = EngineClient(name="raw", url=vllm_url, api_key=control_token())
    yield client
    await client.close()


def prompt(seed: int, tokens: int) -> list[int]:
    """Token ids, others for every seed."""
    return np.random.default_rng([seed, tokens]).integers(10, 8000, tokens).tolist()


async def ask(engine, name: str, ids: list[int], output_tokens: int, *, priority: int = 0) -> list[int]:
    """A greedy completion's tokens."""
    document = {"model": "tiny", "prompt": ids, "max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
    # The penalties make each token depend on all before it: left alone, random weights say one token for ever.
    document |= {"temperature": 0.0, "presence_penalty": 2.0, "repetition_penalty": 1.5, "return_token_ids": True}
    # Nothing is found in the prefix cache, however often the tests run against one engine.
    document["cache_salt"] = uuid4().hex
    response = await engine.send(COMPLETIONS, orjson.dumps(document), {}, request_id=name, priority=priority)
    body = b"".join([chunk async for chunk in response.chunks()])
    await response.close()
    assert response.status == 200, body
    return orjson.loads(body)["choices"][0]["token_ids"]


async def state(route) -> dict:
    status, data = await route.get(CONTROL_PATH)
    assert status == 200, data
    return orjson.loads(data)


async def order(route, **fields) -> tuple[int, dict]:
    status, data = await route.post(CONTROL_PATH, orjson.dumps(fields))
    return status, orjson.loads(data)


async def until(engine, condition) -> None:
    deadline_s = time.monotonic() + 20
    while not condition(snapshot := await engine.snapshot(0.0)):
        assert time.monotonic() < deadline_s, snapshot


async def steps_for(engine, route, work) -> tuple[int, float]:
    """Steps that the engine took while `work` was done, and the tokens it was given per step."""
    before = (await state(route))["counters"]
    await work
    after = (await state(route))["counters"]
    steps = after["steps"] - before["steps"]
    return steps, (after["scheduled_tokens"] - before["scheduled_tokens"]) / steps


async def test_what_it_says(engine, route):
    assert (await state(route))["priority"] is True
    able, snapshot = engine.capabilities, await engine.snapshot(0.0)
    assert able.live_knobs == ("n_run", "token_budget")
    assert (able.kind, able.priority, able.control) == ("vllm", True, "live: n_run, token_budget")
    assert (snapshot.max_num_seqs_ceiling, snapshot.max_num_batched_tokens_ceiling) == (32, 1024)


async def test_the_cap_holds_and_lowering_it_evicts_nobody(engine):
    preemptions = (await engine.snapshot(0.0)).preemptions_total
    work = [asyncio.ensure_future(ask(engine, f"cap-{i:04}", prompt(i, 20), 60 + 10 * i)) for i in range(16)]
    await until(engine, lambda now: now.running == 16)
    assert (await engine.apply_knobs(Knobs(n_run=4))).applied == {"n_run": 4}
    late = [asyncio.ensure_future(ask(engine, f"cap-{i:04}", prompt(i, 20), 40)) for i in range(16, 24)]
    await until(engine, lambda now: now.running <= 4)
    while (now := await engine.snapshot(0.0)).waiting:
        assert 0 < now.running <= 4
    assert {len(tokens) for tokens in await asyncio.gather(*late)} == {40}
    assert [len(tokens) for tokens in await asyncio.gather(*work)] == [60 + 10 * i for i in range(16)]
    assert (await engine.snapshot(0.0)).preemptions_total == preemptions


async def test_a_raised_cap_lets_the_waiting_in(engine):
    await engine.apply_knobs(Knobs(n_run=1))
    work = [asyncio.ensure_future(ask(engine, f"raise-{i:04}", prompt(i, 20), 200)) for i in range(8)]
    await until(engine, lambda now: (now.running, now.waiting) == (1, 7))
    await engine.apply_knobs(Knobs(n_run=8))
    await until(engine, lambda now: (now.running, now.waiting) == (8, 0))
    await asyncio.gather(*work)


async def test_tokens_per_step(engine, route):
    async def prefills(first: int):
        await asyncio.gather(*(ask(engine, f"budget-{i:04}", prompt(i, 500), 2) for i in range(first, first + 4)))

    steps, tokens = await steps_for(engine, route, prefills(100))
    assert steps < 2000 / 64
    assert tokens > 64
    await engine.apply_knobs(Knobs(token_budget=64))
    steps, tokens = await steps_for(engine, route, prefills(200))
    assert steps >= 2000 / 64
    assert tokens <= 64


async def test_a_queued_request_overtakes(engine):
    await engine.apply_knobs(Knobs(n_run=1))
    ended = []

    async def queued(number: int, tokens: int, priority: int) -> None:
        await ask(engine, f"order-{number:04}", prompt(400 + number, 10), tokens, priority=priority)
        ended.append(number)

    work = [asyncio.ensure_future(queued(0, 400, 0))]
    await until(engine, lambda now: now.running == 1)
    for number, priority in enumerate((7, 0, -5, 0), start=1):
        work.append(asyncio.ensure_future(queued(number, 2, priority)))
        await until(engine, lambda now, number=number: now.waiting == number)
    await asyncio.gather(*work)
    assert ended == [0, 3, 2, 4, 1]


@pytest.mark.long
async def test_a_hundred_changes_under_load(engine, route):
    """No request fails, and every greedy answer is the one that an undisturbed run gives."""
    rng = np.random.default_rng(7)
    asks = [(prompt(600 + i, int(rng.integers(5, 300))), int(rng.integers(5, 60))) for i in range(48)]

    async def run(part: str) -> list[list[int]]:
        return await asyncio.gather(*(ask(engine, f"{part}-{i:04}", ids, tokens) for i, (ids, tokens) in enumerate(asks)))

    undisturbed = await run("calm")
    assert len({tuple(tokens) for tokens in undisturbed}) == 48
    assert min(len(set(tokens)) / len(tokens) for tokens in undisturbed) > 0.2
    runs = [asyncio.ensure_future(run("storm"))]
    await until(engine, lambda now: now.running > 0)
    for _ in range(100):
        knobs = {"n_run": int(rng.integers(1, 33)), "token_budget": int(rng.integers(32, 1025))}
        status, answer = await order(route, knobs=knobs)
        assert (status, answer["applied"]) == (200, knobs)
        if runs[-1].done():
            runs.append(asyncio.ensure_future(run("storm")))
    await engine.apply_knobs(OPEN)
    for answers in await asyncio.gather(*runs):
        assert answers == undisturbed


async def test_the_token_is_asked_for(vllm_url):
    for token in ("", "wrong", control_token() + "x", control_token()[:-1]):
        engine = await connect_engine(name="v1", url=vllm_url, control_token=token)
        assert (await engine.snapshot(0.0)).healthy
        assert engine.capabilities.live_knobs == ()
        report = await engine.apply_knobs(Knobs(n_run=2))
        assert "token" in report.refused["n_run"]
        await engine.close()
        client = EngineClient(name="raw", url=vllm_url, api_key=token)
        assert (await client.get(CONTROL_PATH))[0] == 401
        assert (await order(client, knobs={"n_run": 2}))[0] == 401
        await client.close()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{}", "body"),
        (b'{"knobs": {}}', "body"),
        (b'{"knobs": {"n_run": 33}}', "knobs.n_run"),
        (b'{"knobs": {"n_run": 0}}', "knobs.n_run"),
        (b'{"knobs": {"n_run": 4, "token_budget": 1025}}', "knobs.token_budget"),
        (b'{"knobs": {"n_run": true}}', "knobs.n_run"),
        (b'{"knobs": {"n_run": ' + b"9" * 30 + b"}}", "knobs.n_run"),
        (b'{"knobs": {"max_num_running_reqs": 1}}', "knobs.max_num_running_reqs"),
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


async def test_an_operator_turns_the_engines_knobs_through_the_gateway(vllm_url, route, tmp_path):
    config = Config(
        state_dir=str(tmp_path),
        gateway=GatewayConfig(port=0, admin_port=0, no_auth=True, drain_s=1),
        engines=[EngineConfig(name="gpu-0", url=vllm_url, control_token_env="ENGINE_TOKEN")],
        agents=AgentsConfig(enabled=False),
    )
    stop, ready, bus = asyncio.Event(), asyncio.get_running_loop().create_future(), MemoryBus()
    env = {"ENGINE_TOKEN": control_token()}
    gateway = asyncio.create_task(serve(config, bus=bus, clock=SystemClock(), on_ready=ready.set_result, stop=stop, env=env))
    admin = AdminClient((await ready).admin_url, token_file=tmp_path / ADMIN_TOKEN_FILE)

    async def in_force(*values: int) -> None:
        deadline_s = time.monotonic() + 20
        while (now := tuple(knob["value"] for knob in (await state(route))["knobs"].values())) != values:
            assert time.monotonic() < deadline_s, now

    (item,) = await asyncio.to_thread(admin.engines)
    assert item["control"].startswith("live: n_run, token_budget")
    await asyncio.to_thread(admin.force_knobs, "gpu-0", n_run=3, token_budget=128, author="a", reason="r")
    await in_force(3, 128)
    (item,) = await asyncio.to_thread(admin.engines)
    assert [item[name]["acts"] for name in ("n_run", "token_budget")] == ["engine and window", "engine"]
    await asyncio.to_thread(admin.release_knobs, "gpu-0")
    await in_force(32, 1024)
    stop.set()
    await gateway
    await bus.close()
