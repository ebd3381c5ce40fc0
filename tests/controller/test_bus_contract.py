"""What every implementation of `Bus` promises: the same tests on the real embedded server and on the one in memory."""

import asyncio
import itertools
from contextlib import aclosing

import pytest
from hmas_lab.memory_bus import MemoryBus
from redis.asyncio import Redis

from hmas.controller.bus.base import Bus
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.core.errors import MessageError
from hmas.controller.core.messages import ACTIONS, EVENTS, MAXLEN, OVERRIDES, ControlAction, Event, OverrideNotice

PREFIXES = itertools.count()


@pytest.fixture(scope="module")
def server(module_server):
    return module_server


@pytest.fixture
def bus(each_bus):
    return each_bus


def event(number: int) -> Event:
    return Event(sent_s=float(number), source="test", kind="count", subject=str(number))


def numbers(batch) -> list[int]:
    return [int(delivery.message.subject) for delivery in batch]


async def collect(batches, count: int) -> list:
    """The next `count` deliveries; fails when they do not come."""
    found: list = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await anext(batches)
    return found


async def settled(bus: Bus, stream: str, newest) -> None:
    """Waits until what was posted stands in the stream."""
    async with asyncio.timeout(10):
        while (await bus.latest(stream)) != [newest]:  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.002)


async def blocked(bus: Bus, server: EmbeddedServer, readers: int) -> None:
    """Waits until so many readers wait for what is not there."""
    if isinstance(bus, MemoryBus):
        # In memory a reader that has begun waits by its first suspension.
        await asyncio.sleep(0)
        return
    async with asyncio.timeout(10), Redis.from_url(server.url) as raw:
        while (await raw.info("clients"))["blocked_clients"] < readers:  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.002)


async def test_a_group_sees_everything_once_in_order_in_bounded_batches(bus):
    for number in range(250):
        bus.post(event(number))
    await settled(bus, EVENTS, event(249))
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", count=100)) as batches:
        sizes: list[int] = []
        seen: list[int] = []
        async with asyncio.timeout(10):
            while len(seen) < 250:
                batch = await anext(batches)
                await bus.ack(batch, group="g")
                sizes.append(len(batch))
                seen += numbers(batch)
    assert seen == list(range(250))
    assert max(sizes) <= 100


async def test_consumers_of_a_group_share_and_groups_do_not(bus):
    for number in range(10):
        bus.post(event(number))
    await settled(bus, EVENTS, event(9))
    async with (
        aclosing(bus.read([EVENTS], group="g", consumer="a", count=5)) as first,
        aclosing(bus.read([EVENTS], group="g", consumer="b", count=5)) as second,
        aclosing(bus.read([EVENTS], group="h", consumer="a", count=20)) as other,
    ):
        shared = numbers(await collect(first, 5)) + numbers(await collect(second, 5))
        assert sorted(shared) == list(range(10))
        assert numbers(await collect(other, 10)) == list(range(10))


async def test_what_a_consumer_did_not_acknowledge_comes_first_when_it_comes_back(bus):
    for number in range(6):
        bus.post(event(number))
    await settled(bus, EVENTS, event(5))
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", count=4)) as batches:
        batch = await collect(batches, 4)
        await bus.ack(batch[:1], group="g")
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", count=2)) as batches:
        assert numbers(await anext(batches)) == [1, 2]
        assert numbers(await anext(batches)) == [3]
        assert numbers(await anext(batches)) == [4, 5]


async def test_acknowledged_entries_do_not_come_back(bus):
    bus.post(event(0))
    async with aclosing(bus.read([EVENTS], group="g", consumer="0")) as batches:
        await bus.ack(await collect(batches, 1), group="g")
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
        assert await anext(batches) == []


async def test_an_empty_block_yields_an_empty_batch_and_the_reader_lives_on(bus):
    async with (
        aclosing(bus.read([EVENTS, ACTIONS], group="g", consumer="0", block_ms=10)) as batches,
        aclosing(bus.follow([EVENTS], block_ms=10)) as follower,
    ):
        assert await anext(batches) == []
        assert await anext(follower) == []
        bus.post(event(1))
        assert numbers(await collect(batches, 1)) == [1]
        assert numbers(await collect(follower, 1)) == [1]


async def test_a_blocked_reader_wakes_at_once(bus, server):
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=60_000)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await blocked(bus, server, 1)
        bus.post(event(7))
        async with asyncio.timeout(5):
            assert numbers(await waiting) == [7]


async def test_followers_all_see_what_is_new_and_nothing_old(bus):
    bus.post(event(0))
    await settled(bus, EVENTS, event(0))
    async with aclosing(bus.follow([EVENTS], block_ms=10)) as first, aclosing(bus.follow([EVENTS, ACTIONS], block_ms=10)) as second:
        assert await anext(first) == []
        assert await anext(second) == []
        for number in range(1, 4):
            bus.post(event(number))
        bus.post(ControlAction(sent_s=1.0, instance="a", n_run=2))
        assert numbers(await collect(first, 3)) == [1, 2, 3]
        assert {delivery.stream for delivery in await collect(second, 4)} == {EVENTS, ACTIONS}


async def test_latest_is_the_newest_with_the_oldest_first(bus):
    assert await bus.latest(EVENTS, 3) == []
    for number in range(5):
        bus.post(event(number))
    await settled(bus, EVENTS, event(4))
    assert [message.subject for message in await bus.latest(EVENTS, 3)] == ["2", "3", "4"]
    assert len(await bus.latest(EVENTS, 100)) == 5


async def test_streams_are_bounded(bus):
    bound = MAXLEN[OVERRIDES]
    for number in range(bound * 4):
        bus.post(OverrideNotice(sent_s=float(number)))
    await settled(bus, OVERRIDES, OverrideNotice(sent_s=float(bound * 4 - 1)))
    standing = await bus.latest(OVERRIDES, bound * 10)
    # Trimming goes by whole nodes of 100 entries.
    assert bound <= len(standing) <= bound + 100


async def test_a_message_that_cannot_be_encoded_fails_at_its_sender(bus):
    with pytest.raises(MessageError):
        bus.post(Event(sent_s=0.0, source="s", kind="k", subject="\ud800"))


async def test_closing_ends_blocked_readers_and_counts_what_comes_after(bus, server):
    batches = bus.read([EVENTS], group="g", consumer="0", block_ms=60_000)
    follower = bus.follow([EVENTS], block_ms=60_000)

    async def drain(source) -> int:
        async with aclosing(source):
            return sum([len(batch) async for batch in source])

    tasks = [asyncio.create_task(drain(batches)), asyncio.create_task(drain(follower))]
    await blocked(bus, server, 2)
    await bus.close()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*tasks) == [0, 0]
    bus.post(event(1))
    assert bus.health.dropped == 1


async def test_health_says_connected(bus):
    async with asyncio.timeout(5):
        while not bus.health.connected:  # noqa: ASYNC110 - health is polled by contract
            await asyncio.sleep(0.002)
    assert bus.health.detail == ""
