"""Statera, as `hmas up` runs it, regulating a real vLLM through its plugin: window and token budget act in the engine, under load."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest
from vllm_server import ROOT, control_token

from hmas.engines.client import EngineClient
from hmas.engines.control import CONTROL_PATH

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(300)]

BUDGET, SLOTS = 1024, 32
"""What the engine was started with."""
CLIENTS = 24
LOOSE_MS, STRICT_MS = 5000, 1
"""Targets of the time per output token: one that any window keeps, one that none does."""


@dataclass(frozen=True)
class Moment:
    """The token budget in force, steps so far, and tokens scheduled in them."""

    token_budget: int
    steps: int
    tokens: int


def steps_of(moments: list[Moment]) -> list[tuple[int, float]]:
    """Between each two moments with steps in between: the larger budget of the two, and the mean tokens of a step."""
    return [
        (max(one.token_budget, other.token_budget), (other.tokens - one.tokens) / (other.steps - one.steps))
        for one, other in pairwise(moments)
        if other.steps > one.steps
    ]


@dataclass
class Stack:
    """A running `hmas up` in front of the engine, and the engine's own word beside it."""

    gateway: str
    session: aiohttp.ClientSession
    engine: EngineClient

    async def state(self) -> dict[str, Any]:
        """The plugin's own account of the engine's scheduler."""
        status, data = await self.engine.get(CONTROL_PATH, timeout_s=30.0)
        assert status == 200, data
        return orjson.loads(data)

    async def knobs(self) -> tuple[int, int]:
        """Cap and token budget in force in the engine."""
        found = (await self.state())["knobs"]
        return found["n_run"]["value"], found["token_budget"]["value"]

    async def held_and_running(self) -> tuple[int, int]:
        """The cap in force in the engine, and how many requests it runs, at the same moment."""
        found = await self.state()
        return found["knobs"]["n_run"]["value"], found["counters"]["running"]

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, limit_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not await condition():
            assert time.monotonic() < deadline_s, f"{what} did not happen within {limit_s:g} s; knobs are {await self.knobs()}"
            await asyncio.sleep(0.1)

    async def stream(self, tpot_ms: int, number: int) -> None:
        """One streamed answer through the gateway."""
        document = {"model": "tiny", "messages": [{"role": "user", "content": f"number {number} " * 20}], "stream": True}
        document |= {"max_tokens": 80, "min_tokens": 80, "ignore_eos": True}
        headers = {"x-slo-tpot-ms": str(tpot_ms), "x-slo-ttft-ms": "600000"}
        async with self.session.post(f"{self.gateway}/v1/chat/completions", json=document, headers=headers) as response:
            await response.read()
            assert response.status == 200

    async def read_prompts(self) -> None:
        """Has the engine read eight prompts of 1,000 tokens, sent past the gateway."""
        await asyncio.gather(*(self.read(number) for number in range(8)))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[list["Moment"]]:
        """The engine's knobs and counters all the while, as often as it answers."""
        moments: list[Moment] = []

        async def watch() -> None:
            while True:
                state = await self.state()
                moments.append(
                    Moment(state["knobs"]["token_budget"]["value"], state["counters"]["steps"], state["counters"]["scheduled_tokens"])
                )
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        try:
            yield moments
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def read(self, number: int) -> None:
        prompt = np.random.default_rng([number, time.monotonic_ns()]).integers(10, 8000, 1000).tolist()
        document = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "priority": -1000}
        status, data = await self.engine.post("/v1/completions", orjson.dumps(document), timeout_s=120.0)
        assert status == 200, data

    @asynccontextmanager
    async def load(self, tpot_ms: int) -> AsyncIterator[None]:
        """`CLIENTS` clients that ask again as soon as they have their answer."""

        async def client(number: int) -> None:
            while True:
                await self.stream(tpot_ms, number)

        clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
        try:
            yield
            failed = [one.exception() for one in clients if one.done()]
            assert failed == []
        finally:
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


@pytest.fixture
def gateway(vllm_url: str, tmp_path: Path) -> Iterator[str]:
    """Where `hmas up` serves; it is ended afterwards, and its log is shown where it could not start."""
    config = tmp_path / "hmas.yaml"
    engine = {"name": "gpu-0", "url": vllm_url, "kind": "vllm", "control_token_env": "ENGINE_TOKEN"}
    config.write_text(json.dumps({"state_dir": str(tmp_path), "gateway": {"no_auth": True}, "engines": [engine]}))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")}
    env = {**clean, "ENGINE_TOKEN": control_token(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hmas", "up", "--json", "--config", str(config), "--port", "0", "--admin-port", "0"]
    log = tmp_path / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, env=env, cwd=tmp_path)
    try:
        assert process.stdout is not None
        text = b""
        for line in process.stdout:
            text += line
            if line == b"}\n":
                break
        assert text, log.read_text()[-3000:]
        yield json.loads(text)["gateway"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.fixture
async def stack(gateway: str, vllm_url: str) -> AsyncIterator[Stack]:
    engine = EngineClient(name="raw", url=vllm_url, api_key=control_token())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Stack(gateway, session, engine)
    start = {"n_run": SLOTS, "token_budget": BUDGET}
    status, data = await engine.post(CONTROL_PATH, orjson.dumps({"knobs": start}))
    assert status == 200, data
    await engine.close()


async def test_pressure_takes_window_and_token_budget_back_in_the_engine_and_ease_returns_them(stack: Stack, tmp_path: Path):
    widest = 0

    async def widened() -> bool:
        return (await stack.knobs())[0] >= 16

    async def narrowed() -> bool:
        return (await stack.knobs())[0] <= 8

    async def drained() -> bool:
        nonlocal widest
        widest, running = await stack.held_and_running()
        return running <= widest

    async def whole() -> bool:
        return (await stack.knobs())[1] == BUDGET

    async with stack.load(LOOSE_MS):
        await stack.until(widened, "a window that grows while every target is met")
        async with stack.watched() as loose:
            await stack.read_prompts()
    assert {moment.token_budget for moment in loose} == {BUDGET}
    async with stack.load(STRICT_MS):
        async with stack.watched() as strict:
            await stack.until(narrowed, "a narrow window")
            await stack.read_prompts()
        # Whoever was taken in when the window was wide leaves in time; from then on no more run than the window has held.
        await stack.until(drained, "a batch as small as the window")
        for _ in range(20):
            held, running = await stack.held_and_running()
            widest = max(widest, held)
            assert running <= widest + 1
            await asyncio.sleep(0.05)
    await stack.until(whole, "the engine's whole budget after the load")
    (tmp_path / "moments.json").write_bytes(orjson.dumps({"loose": loose, "strict": strict}, option=orjson.OPT_INDENT_2))
    # The budget is taken back at once, and given back when the window has done its part: no window makes a hopeless target good.
    least = min(moment.token_budget for moment in strict)
    assert least <= BUDGET // 2 + SLOTS
    # The knob is no number on paper: no step is larger than it allows, and steps that are allowed to be larger are.
    taken = steps_of(loose) + steps_of(strict)
    assert all(tokens <= budget for budget, tokens in taken)
    assert max(tokens for _, tokens in steps_of(loose)) > least
