"""Requests that a real vLLM refuses in the first event of a stream, through H-MAS as it comes: each gets its 400, and no other waits."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from hmas_lab.as_it_comes import hmas_up
from hmas_lab.mistakes import MISTAKES, Load, measure

from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.runtime.clock import SystemClock

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ALLOWED = {50: 1.5, 99: 3.0}
"""How much a shared test machine may stretch percentiles of 40 requests: two equal loads lie up to 1.9 times apart in p99 there. An open
circuit costs 15 s, which is 20 times. `make bench-bad-requests` measures against the goal of 1.1."""
BAD_RPS, SECONDS = 12.0, 20.0


@pytest.fixture
async def gateway(vllm_url: str, tmp_path: Path) -> AsyncIterator[str]:
    async with hmas_up((f"vllm={vllm_url}",), tmp_path) as stack:
        yield stack.url


async def ask(url: str, fields: dict[str, Any], *, stream: bool) -> tuple[int, bytes]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "stream": stream} | fields
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("name", MISTAKES)
async def test_streamed_and_not_it_is_the_same_error(vllm_url: str, gateway: str, name: str):
    direct_status, direct = await ask(vllm_url, MISTAKES[name], stream=True)
    assert (direct_status, direct[:6]) == (200, b"data: "), "vLLM reports it in the stream: what this test is about"
    said = orjson.loads(direct.removeprefix(b"data: ").partition(b"\n\n")[0])
    for stream in (True, False):
        status, body = await ask(gateway, MISTAKES[name], stream=stream)
        assert status == said["error"]["code"] == 400
        assert orjson.loads(body) == said


@pytest.mark.long
async def test_a_dozen_mistakes_a_second_cost_the_good_ones_nothing(vllm_url: str, gateway: str):
    clock = SystemClock()
    await measure(gateway, Load(model="tiny", seconds=3.0, bad_rps=BAD_RPS), clock)
    alone = await measure(gateway, Load(model="tiny", seconds=SECONDS), clock)
    beside = await measure(gateway, Load(model="tiny", seconds=SECONDS, bad_rps=BAD_RPS), clock)
    assert beside.bad == {"400": round(BAD_RPS * SECONDS)}
    assert beside.good == alone.good == {"200": round(2.0 * SECONDS)}
    for q, allowed in ALLOWED.items():
        assert percentile(beside.total_ms, q) <= allowed * percentile(alone.total_ms, q)
    async with aiohttp.ClientSession() as session, session.get(f"{gateway}/ready") as response:
        assert response.status == 200
