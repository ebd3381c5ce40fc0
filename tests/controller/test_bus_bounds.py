"""How long a stream may get: in entries, and in bytes."""

import asyncio

import pytest
from bus_kit import event, last_is
from msgspec import structs

from hmas.controller.bus import wire


async def test_a_stream_of_large_entries_is_kept_shorter(bus, raw, monkeypatch):
    monkeypatch.setattr(wire, "BYTES_MOST", 4 << 20)
    for number in range(3_000):
        bus.post(structs.replace(event(number), reason="x" * 8_000))
        if number % 200 == 0:
            await asyncio.sleep(0.005)
    await last_is(bus, 2_999)
    assert 500 < await raw.xlen("hmas:events") < 700, "4 MiB of 8 kB each"
    for number in range(3_000, 13_000):
        bus.post(event(number))
        if number % 500 == 0:
            await asyncio.sleep(0.005)
    await last_is(bus, 12_999)
    assert await raw.xlen("hmas:events") > 9_000, "small ones have room again"


def test_the_bound_follows_the_size_and_stays_between_its_ends():
    bounded = wire.Bounded("k", 20_000)
    for size, bound in ((500, 20_000), (65_000, wire.BYTES_MOST // 65_000), (10**7, wire.ENTRIES_LEAST), (500, 20_000)):
        for _ in range(20_000):
            head = bounded.head(size)
        assert bounded.bound == pytest.approx(bound, rel=0.11)
        assert b"%d" % bounded.bound in head
    assert bounded.bound == 20_000
