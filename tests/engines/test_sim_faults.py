"""Faults on demand do what they are called."""

import asyncio

import aiohttp
import orjson
import pytest
from sim_faults import Fault, parse_fault

CHAT = "/v1/chat/completions"


def chat(**fields):
    return {"model": "tiny", "messages": [{"role": "user", "content": "tell me something"}]} | fields


def test_parsing():
    assert parse_fault("reset-after:5") == Fault("reset-after", 5)
    assert parse_fault("status") == Fault("status", 500)
    assert parse_fault("stall") == Fault("stall", 0)
    for bad in ("", "gremlins", "stall:x", "stall:", "reset-after:-1"):
        with pytest.raises(ValueError, match="allowed are html"):
            parse_fault(bad)


@pytest.mark.parametrize("fault", ["html", "garbage", "status:503"])
async def test_faults_in_place_of_an_answer(start_sim, fault):
    sim = await start_sim(fault=fault)
    async with sim.session.post(sim.url + CHAT, json=chat()) as response:
        body = await response.read()
        expected = {"html": (200, "text/html"), "garbage": (200, "text/event-stream"), "status:503": (503, "application/json")}
        assert (response.status, response.content_type) == expected[fault]
        assert body
    assert (await sim.get("/health"))[0] == 200


async def test_fault_everywhere_and_a_limited_number_of_times(sim):
    await sim.post("/sim/fault", {"fault": "html", "everywhere": True, "times": 2})
    assert (await sim.get("/sim/state"))[1].startswith(b"<!DOCTYPE")
    assert (await sim.get("/v1/models"))[1].startswith(b"<!DOCTYPE")
    assert orjson.loads((await sim.get("/sim/state"))[1])["healthy"]
    assert (await sim.post("/sim/fault", {"fault": "gremlins"}))[0] == 400
    assert (await sim.post("/sim/fault", {"fault": None}))[1] == {"fault": None}


async def test_reset_before_the_head(start_sim):
    sim = await start_sim(fault="reset-before")
    with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        await sim.post(CHAT, chat())


@pytest.mark.parametrize("stream", [True, False])
async def test_reset_after_tokens(start_sim, stream):
    sim = await start_sim(fault="reset-after:3")
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
        await sim.post(CHAT, chat(stream=stream, sim={"output_tokens": 10}))
    await sim.until(lambda: sim.model.idle)


async def test_half_an_event_then_a_clean_end(start_sim):
    sim = await start_sim(fault="half-sse:2")
    async with sim.session.post(sim.url + CHAT, json=chat(stream=True, sim={"output_tokens": 10})) as response:
        body = await response.read()
    events = body.split(b"\n\n")
    assert len(events) == 4, "the role, two tokens, and a half"
    assert events[-1].endswith(b'"del')
    async with sim.session.post(sim.url + CHAT, json=chat(sim={"output_tokens": 10})) as response:
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(await response.read())
    await sim.until(lambda: sim.model.idle)


async def test_a_stall_keeps_the_connection_open(start_sim):
    sim = await start_sim(fault="stall:1")
    async with sim.session.post(sim.url + CHAT, json=chat(stream=True, sim={"output_tokens": 3})) as response:
        assert b'"content":' in await response.content.readany()
        await sim.until(lambda: sim.model.idle)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await response.content.readany()
        response.close()
