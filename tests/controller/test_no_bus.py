"""The bus of a gateway without agents: it takes everything and gives nothing."""

import asyncio
from contextlib import aclosing

import pytest

from hmas.controller.bus.no_bus import NoBus
from hmas.controller.core.messages import EVENTS, Event


@pytest.fixture
async def bus():
    bus = NoBus()
    await bus.start()
    return bus


async def test_what_is_posted_is_gone_and_the_bus_stays_connected(bus):
    bus.post(Event(sent_s=1.0, source="test", kind="count", subject="1"))
    assert await bus.latest(EVENTS, 10) == []
    assert bus.health.connected
    assert bus.health.dropped == 0


async def test_readers_get_empty_batches_until_it_closes(bus):
    read = bus.read([EVENTS], group="g", consumer="0", block_ms=5)
    follow = bus.follow([EVENTS], block_ms=5)
    async with aclosing(read), aclosing(follow):
        for batches in (read, follow, read, follow):
            bus.post(Event(sent_s=1.0, source="test", kind="count", subject="1"))
            assert await anext(batches) == []
        await bus.close()
        assert [batch async for batch in read] == []
        assert [batch async for batch in follow] == []


async def test_closing_ends_a_reader_that_waits(bus):
    async with aclosing(bus.follow([EVENTS], block_ms=60_000)) as batches:
        waiting = asyncio.ensure_future(anext(batches, None))
        await asyncio.sleep(0)
        await bus.close()
        async with asyncio.timeout(5):
            assert await waiting is None


async def test_whoever_asks_has_the_lease(bus):
    assert await bus.take_lease("gateway", "a", 2.0) == "a"
    assert await bus.take_lease("gateway", "a", 2.0, over="b") == "a"
    await bus.release_lease("gateway", "a")
