"""The embedded engine behind its door, in virtual time: what reaches it in one moment begins in one step."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import msgspec
import pytest
from hmas_lab.parity.scenario import ENGINES
from hmas_lab.virtual_loop import VirtualLoop, run_virtual

from hmas.engines.sim.model import EngineModel, SimRequest
from hmas.engines.sim.profile import Profile
from hmas.engines.sim.server import create_app, start

PROFILE = msgspec.structs.replace(ENGINES["fast"], request_ms=0.0)


@asynccontextmanager
async def served(loop: VirtualLoop, profile: Profile) -> AsyncIterator[str]:
    app = create_app(EngineModel(profile), "m", "e", now_s=loop.time, settle=loop.settled)
    runner, port = await start(app, grace_s=0.1)
    try:
        yield f"http://127.0.0.1:{port}/v1/completions"
    finally:
        await runner.cleanup()


async def token_times(loop: VirtualLoop, url: str, session: aiohttp.ClientSession, *, prompt: int, output: int) -> list[float]:
    times = []
    body = {"model": "m", "prompt": [1] * prompt, "stream": True, "sim": {"output_tokens": output}}
    async with session.post(url, json=body) as response:
        async for chunk in response.content.iter_any():
            times += [loop.time()] * chunk.count(b'"text"')
    return times


def stepped(profile: Profile, prompts: list[int], output: int, begin_s: float) -> list[float]:
    """When the model alone, given all at once, hands out the tokens of its first request."""
    model = EngineModel(profile)
    for index, prompt in enumerate(prompts):
        model.add(SimRequest(str(index), prompt, output))
    times, now_s = [], begin_s
    while (step := model.step(now_s)) is not None:
        now_s = step.end_s
        times += [now_s for event in step.produced if event.id == "0"]
    return times


def test_requests_of_one_moment_begin_in_one_step_and_tokens_come_at_the_models_very_times():
    async def main(loop: VirtualLoop) -> list[list[float]]:
        async with served(loop, PROFILE) as url, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.sleep(0.5)
            return await asyncio.gather(*(token_times(loop, url, session, prompt=prompt, output=12) for prompt in (40, 50, 60)))

    times = run_virtual(main, start_s=1000.0)
    expected = stepped(PROFILE, [40, 50, 60], 12, 1000.5)
    assert times == [expected] * 3


def test_the_front_end_of_a_profile_delays_the_request():
    async def main(loop: VirtualLoop, profile: Profile) -> list[float]:
        async with served(loop, profile) as url, aiohttp.ClientSession() as session:
            return await token_times(loop, url, session, prompt=100, output=3)

    slow = msgspec.structs.replace(PROFILE, request_ms=250.0)
    without, with_it = (run_virtual(partial(main, profile=profile), start_s=0.0) for profile in (PROFILE, slow))
    assert with_it == pytest.approx([at_s + 0.25 for at_s in without], abs=1e-12)
