"""RedisBus against a real server that is killed, emptied, fed garbage and brought back."""

import asyncio
import os
import signal
from contextlib import aclosing
from typing import cast

import pytest
from bus_kit import event
from msgspec import structs
from redis.asyncio import Redis

from hmas.controller.bus import link, redis_bus, redis_reader, redis_sender
from hmas.controller.bus.base import Delivery
from hmas.controller.bus.codec import encode
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.link import Backoff, Link
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.errors import BusError
from hmas.controller.core.messages import COSTS, EVENTS, VIEWS, RequestCost


def kill(server: EmbeddedServer) -> None:
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def numbers(batch) -> list[int]:
    return [int(delivery.message.subject) for delivery in batch]


async def until(condition) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - the condition lies in another process
            await asyncio.sleep(0.002)


async def next_full(batches) -> list:
    """The next batch that is not empty; fails when none comes."""
    async with asyncio.timeout(15):
        async for batch in batches:
            if batch:
                return batch
    raise AssertionError("the reader ended")


async def next_numbers(batches, count: int) -> list[int]:
    """The next so many: a reader that waits is served at the first of those that were sent together."""
    got: list[int] = []
    while len(got) < count:
        got += numbers(await next_full(batches))
    return got


async def test_reader_follower_and_sender_recover_from_a_killed_server(server, bus):
    async with (
        aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=50)) as batches,
        aclosing(bus.follow([EVENTS], block_ms=50)) as follower,
    ):
        assert await anext(follower) == []
        bus.post(event(1))
        first = await next_full(batches)
        await bus.ack(first, group="g")
        assert numbers(await next_full(follower)) == [1]

        kill(server)
        assert await anext(batches) == []
        assert await anext(follower) == []
        assert not bus.health.connected
        assert bus.health.detail
        await bus.ack(first, group="g")
        assert await bus.latest(EVENTS) == []
        for number in (2, 3):
            bus.post(event(number))

        server.start()
        assert await next_numbers(batches, 2) == [2, 3]
        assert await next_numbers(follower, 2) == [2, 3]
        assert bus.health.connected
        assert bus.health.dropped == 0


async def test_a_bus_may_start_before_its_server(tmp_path):
    server = EmbeddedServer(tmp_path / "bus")
    server.start()
    server.stop()
    bus = RedisBus(server.url)
    await bus.start()
    try:
        async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
            assert await anext(batches) == []
            assert not bus.health.connected
            bus.post(event(1))
            server.start()
            assert numbers(await next_full(batches)) == [1]
    finally:
        await bus.close()
        server.stop()


async def test_the_buffer_is_bounded_while_the_server_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr(redis_sender, "BUFFER", 10)
    server = EmbeddedServer(tmp_path / "bus")
    bus = RedisBus(server.url)
    await bus.start()
    try:
        for number in range(25):
            bus.post(event(number))
        assert bus.health.dropped == 15
        server.start()
        await until(lambda: bus.health.connected)
        async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
            assert await next_numbers(batches, 10) == list(range(15, 25))
    finally:
        await bus.close()
        server.stop()


async def test_the_buffer_is_bounded_in_bytes_too(tmp_path, monkeypatch):
    monkeypatch.setattr(redis_bus, "FLUSH_S", 0.05)
    bus = RedisBus(f"unix://{tmp_path}/none.sock")
    await bus.start()
    large = structs.replace(event(1), reason="x" * 100_000)
    for _ in range(2_000):
        bus.post(large)
    assert 1_300 < bus.health.dropped < 1_350
    await bus.close()
    assert bus.health.dropped == 2_000


async def test_bytes_count_until_their_answer_and_also_after_a_lost_connection(server, bus, monkeypatch):
    monkeypatch.setattr(redis_sender, "BUFFER_BYTES", 10 * len(encode(event(100))))
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
        for start in range(100, 200, 10):
            for number in range(start, start + 10):
                bus.post(event(number))
            assert await next_numbers(batches, 10) == list(range(start, start + 10))
            # When this answer is here, those to the messages are.
            await bus.latest(EVENTS)
        assert bus.health.dropped == 0, "what was answered takes no room"
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for number in range(200, 210):
            bus.post(event(number))
        await asyncio.sleep(0.05)
        kill(server)
        await until(lambda: not bus.health.connected)
        for number in range(210, 215):
            bus.post(event(number))
        assert bus.health.dropped == 5, "what was written and not answered waits again"
        server.start()
        assert await next_numbers(batches, 10) == list(range(205, 215))


@pytest.mark.parametrize(("setting", "says"), [("maxmemory", "OOM"), ("min-replicas-to-write", "NOREPLICAS")])
async def test_what_a_server_refuses_for_a_while_is_kept_until_it_takes_it(bus, raw, setting, says):
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
        bus.post(event(1))
        assert numbers(await next_full(batches)) == [1]
        await raw.config_set(setting, "1")
        for number in (2, 3):
            bus.post(event(number))
        await until(lambda: says in bus.health.detail)
        assert numbers_of(await bus.latest(EVENTS, 5)) == [1]
        assert not bus.health.connected, "that readers are answered changes nothing"
        await raw.config_set(setting, "0")
        assert await next_numbers(batches, 2) == [2, 3]
        await until(lambda: bus.health.connected)
    assert bus.health.dropped == 0


async def test_an_entry_that_can_never_be_appended_is_given_up_and_those_behind_it_go_on(bus, raw):
    await raw.set(COSTS, "taken")
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
        bus.post(RequestCost(request_id="r", sent_s=1.0, ttft_ms={}, tpot_ms={}, output_tokens=1.0))
        bus.post(event(1))
        assert numbers(await next_full(batches)) == [1]
    # The reader may hear of the entry before the sender has its answer.
    await until(lambda: bus.health.dropped == 1 and bus.health.connected)


async def test_a_server_that_falls_silent_counts_as_away_and_nothing_is_lost(server, bus, monkeypatch):
    monkeypatch.setattr(redis_sender, "ANSWER_TIMEOUT_S", 0.1)
    await until(lambda: bus.health.connected)
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        bus.post(event(1))
        await until(lambda: not bus.health.connected)
    finally:
        os.kill(pid, signal.SIGCONT)
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
        assert set(numbers(await next_full(batches))) == {1}


async def test_more_than_the_server_has_answered_waits_its_turn(bus, monkeypatch):
    monkeypatch.setattr(redis_sender, "AHEAD", 3)
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
        for number in range(20):
            bus.post(event(number))
        assert await next_numbers(batches, 20) == list(range(20))


async def test_closing_without_a_server_gives_up_what_is_left_within_its_second(tmp_path, monkeypatch):
    monkeypatch.setattr(redis_bus, "FLUSH_S", 0.05)
    bus = RedisBus(f"unix://{tmp_path}/none.sock")
    await bus.start()
    bus.post(event(1))
    async with asyncio.timeout(5):
        await bus.close()
    assert bus.health.dropped == 1


async def test_a_lost_group_is_made_again_and_loses_nothing(server, bus, raw):
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=50)) as batches:
        bus.post(event(1))
        await bus.ack(await next_full(batches), group="g")
        await raw.xgroup_destroy(EVENTS, "g")
        await raw.delete(EVENTS)
        bus.post(event(2))
        assert numbers(await next_full(batches)) == [2]
    assert bus.health.connected


async def test_a_stream_deleted_under_a_blocked_reader_is_made_again(bus, raw):
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=60_000)) as batches:
        waiting = asyncio.ensure_future(next_full(batches))
        async with asyncio.timeout(15):
            while not (await raw.info("clients"))["blocked_clients"]:  # noqa: ASYNC110 - the server is another process
                await asyncio.sleep(0.002)
        await raw.flushall()
        bus.post(event(3))
        async with asyncio.timeout(15):
            assert numbers(await waiting) == [3]


async def test_pending_entries_survive_the_server_when_it_is_durable(tmp_path):
    server = EmbeddedServer(tmp_path / "bus", durable=True)
    bus = RedisBus(server.start())
    await bus.start()
    try:
        for number in range(4):
            bus.post(event(number))
        async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=50)) as batches:
            got: list[Delivery] = []
            while len(got) < 4:
                got += await next_full(batches)
            await bus.ack(got[:1], group="g")
        kill(server)
        server.start()
        bus.post(event(4))
        async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=50)) as batches:
            assert numbers(await next_full(batches)) == [1, 2, 3]
            assert numbers(await next_full(batches)) == [4]
    finally:
        await bus.close()
        server.stop()


async def test_entries_of_a_dead_consumer_are_claimed_after_a_while(bus, monkeypatch):
    for number in range(3):
        bus.post(event(number))
    async with aclosing(bus.read([EVENTS], group="g", consumer="dead", block_ms=20)) as batches:
        got: list[Delivery] = []
        while len(got) < 3:
            got += await next_full(batches)
        await bus.ack(got[:1], group="g")
    async with aclosing(bus.read([EVENTS], group="g", consumer="alive", block_ms=20)) as batches:
        assert await anext(batches) == []
        monkeypatch.setattr(redis_reader, "CLAIM_EVERY_S", 0.0)
        assert await anext(batches) == []
        monkeypatch.setattr(redis_reader, "CLAIM_IDLE_MS", 1)
        assert numbers(await next_full(batches)) == [1, 2]


@pytest.mark.parametrize("deleted", [(), ([b"9-9"],)], ids=["before 7.0", "since 7.0"])
async def test_both_shapes_of_a_claim_are_understood(deleted):
    class Server:
        async def xautoclaim(self, key, group, consumer, idle_ms, start_id, count):
            return [b"0-0", [(b"1-1", {b"m": payload})], *deleted]

    payload = b'{"v":1,"m":{"type":"event","sent_s":1,"source":"s","kind":"k","subject":"5"}}'
    reader = redis_reader.GroupReader(Link("unix:///none"), [EVENTS], group="g", consumer="c", count=10, block_ms=10)
    assert numbers(await reader.claim(cast("Redis", Server()))) == [5]


async def test_garbage_is_counted_acknowledged_and_passed_over(bus, raw):
    await raw.xadd(EVENTS, {"m": b"not json"})
    await raw.xadd(EVENTS, {"other": b"field"})
    await raw.xadd(EVENTS, {"m": b'{"v":9,"m":{}}'})
    bus.post(event(1))
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=50)) as batches:
        batch = await next_full(batches)
        assert numbers(batch) == [1]
    assert bus.health.rejected == 3
    await bus.ack(batch, group="g")
    assert (await raw.xpending(EVENTS, "g"))["pending"] == 0
    assert numbers_of(await bus.latest(EVENTS, 10)) == [1]


def numbers_of(messages) -> list[int]:
    return [int(message.subject) for message in messages]


async def test_pending_entries_that_were_trimmed_away_do_not_come_back_for_ever(bus, raw):
    for number in range(3):
        bus.post(event(number))
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=50)) as batches:
        got: list[Delivery] = []
        while len(got) < 3:
            got += await next_full(batches)
    await raw.xdel(EVENTS, got[0].entry_id, got[1].entry_id)
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=50)) as batches:
        assert numbers(await next_full(batches)) == [2]
    assert (await raw.xpending(EVENTS, "g"))["pending"] == 1


async def test_a_key_of_another_kind_harms_neither_other_streams_nor_the_process(bus, raw):
    await raw.set(VIEWS, "taken")
    async with aclosing(bus.read([VIEWS], group="g", consumer="0", block_ms=20)) as batches:
        assert await anext(batches) == []
    assert "WRONGTYPE" in bus.health.detail
    bus.post(event(1))
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=20)) as batches:
        assert numbers(await next_full(batches)) == [1]


async def test_a_follower_goes_on_where_an_emptied_server_begins_anew(server, bus, raw):
    await raw.xadd(EVENTS, {"m": b"{}"}, id="99999999999999-0")
    async with aclosing(bus.follow([EVENTS], block_ms=20)) as follower:
        assert await anext(follower) == []
        kill(server)
        assert await anext(follower) == []
        server.start()
        bus.post(event(1))
        assert numbers(await next_full(follower)) == [1]


async def test_installations_share_a_server_by_prefix(server, raw):
    bus = RedisBus(server.url, key_prefix="blue:")
    await bus.start()
    bus.post(event(1))
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=50)) as batches:
        batch = await next_full(batches)
    assert batch[0].stream == EVENTS
    assert await raw.keys("*") == [b"blue:" + EVENTS.encode()]
    await bus.close()


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:6379", "127.0.0.1:6379"])
def test_a_bad_address_is_refused_at_once(url):
    with pytest.raises(BusError, match=r"bus\.url"):
        RedisBus(url)


def test_backoff_doubles_with_jitter_up_to_its_cap():
    backoff = Backoff(base_s=0.1, cap_s=1.0)
    delays = [backoff.next_s() for _ in range(50)]
    assert all(0.5 * full <= delay <= full for delay, full in zip(delays, [0.1, 0.2, 0.4, 0.8] + [1.0] * 46, strict=True))
    assert len({round(delay, 9) for delay in delays[10:]}) > 1
    backoff.reset()
    assert backoff.next_s() <= 0.1


async def test_a_lost_server_is_reported_once_not_per_attempt(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(link, "CONNECT_TIMEOUT_S", 0.2)
    bus = RedisBus(f"unix://{tmp_path}/none.sock")
    await bus.start()
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=5)) as batches:
        for _ in range(30):
            assert await anext(batches) == []
    await bus.close()
    assert len([record for record in caplog.records if "bus lost" in record.message]) == 1


async def test_a_password_in_the_address_is_never_shown(caplog):
    bus = RedisBus("redis://user:hunter2@127.0.0.1:1/0")
    await bus.start()
    async with aclosing(bus.read([EVENTS], group="g", consumer="0", block_ms=5)) as batches:
        assert await anext(batches) == []
    await bus.close()
    assert "bus lost: redis://127.0.0.1:1/0" in caplog.text
    assert "hunter2" not in caplog.text + bus.health.detail
    with pytest.raises(BusError) as failure:
        RedisBus("http://user:hunter2@127.0.0.1:1")
    assert "hunter2" not in str(failure.value)
