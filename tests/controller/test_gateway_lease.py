"""A second gateway is refused on a bus that another one uses, and one that was killed leaves the bus to its successor."""

import asyncio
import itertools
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from gateway_kit import eventually, running
from hmas_lab.memory_bus import MemoryBus

from hmas.controller.bus.base import Bus
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.errors import BusError
from hmas.controller.core.messages import EVENTS, Event
from hmas.controller.gateway import bus_lease
from hmas.controller.gateway.bus_lease import EXPIRES_S, LEASE, GatewayLease

pytestmark = pytest.mark.slow

PREFIXES = itertools.count()
HOLDS = """
import asyncio, sys
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.gateway.bus_lease import GatewayLease

async def hold():
    bus = RedisBus(sys.argv[1], sys.argv[2])
    await bus.start()
    await GatewayLease(bus, "first", 0.0, on_change=print).take()
    print("taken", flush=True)
    await asyncio.Event().wait()

asyncio.run(hold())
"""


@pytest.fixture(scope="module")
def server(module_server):
    return module_server


@pytest.fixture
def bus(each_bus):
    return each_bus


def lease(bus: Bus, name: str, told: list[str] | None = None) -> GatewayLease:
    return GatewayLease(bus, name, 0.0, on_change=(told if told is not None else []).append)


async def test_a_lease_has_one_holder_until_it_expires_or_is_given_back(bus: Bus):
    assert await bus.take_lease("l", "a", 60.0) == "a"
    assert await bus.take_lease("l", "b", 60.0) == "a"
    assert await bus.take_lease("other", "b", 60.0) == "b"
    await bus.release_lease("l", "b")
    assert await bus.take_lease("l", "b", 60.0) == "a"
    assert await bus.take_lease("l", "b", 60.0, over="c") == "a"
    assert await bus.take_lease("l", "b", 60.0, over="a") == "b"
    await bus.release_lease("l", "b")
    assert await bus.take_lease("l", "a", 0.05) == "a"
    async with asyncio.timeout(5.0):
        while await bus.take_lease("l", "b", 60.0) != "b":  # noqa: ASYNC110 - the server keeps its time
            await asyncio.sleep(0.01)


async def test_without_a_server_a_gateway_serves_and_takes_the_lease_later(tmp_path: Path):
    bus = RedisBus(f"unix://{tmp_path}/r.sock")
    await bus.start()
    mine = lease(bus, "first")
    async with asyncio.timeout(5.0):
        await mine.take()
    assert not bus.silent
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        other = RedisBus(server.url)
        async with asyncio.timeout(10.0):
            while "first" not in await other.take_lease(LEASE, "second", 0.01):  # noqa: ASYNC110 - the server is another process
                await asyncio.sleep(0.05)
        await other.close()
    finally:
        await mine.close()
        await bus.close()
        server.stop()


async def test_a_second_gateway_is_refused_with_the_name_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bus = MemoryBus()
    async with running(tmp_path, bus=bus) as rig:
        # In one process both have the same id; a second process has another, which runs as well.
        monkeypatch.setattr(os, "getpid", os.getppid)
        monkeypatch.setattr(bus_lease, "WAIT_S", 0.3)
        with pytest.raises(BusError) as refused:
            await lease(bus, "second").take()
        monkeypatch.undo()
        assert rig.gateway.name in str(refused.value)
        assert "bus.key_prefix" in str(refused.value)
        assert (await rig.admin("GET", "/admin/status")).json["bus"]["taken_by"] is None
    # The first has ended and given it back.
    again = lease(bus, "second")
    async with asyncio.timeout(0.2):
        await again.take()
    await again.close()


async def test_a_gateway_that_lost_the_bus_posts_nothing_until_it_has_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bus_lease, "RENEW_S", 0.02)
    bus = MemoryBus()
    async with running(tmp_path, bus=bus) as rig:
        bus.leases[LEASE] = ("another one", asyncio.get_running_loop().time() + 0.5)
        await eventually(lambda: bus.silent)
        shown = (await rig.admin("GET", "/admin/status")).json["bus"]["taken_by"]
        posted = len(bus.streams[EVENTS].entries)
        bus.post(Event(sent_s=0.0, source="test", kind="lost", subject="lost"))
        assert len(bus.streams[EVENTS].entries) == posted
        await eventually(lambda: not bus.silent)
        changes = [(one["before"], one["after"], one["severity"]) for one in rig.events("bus")]
    assert shown == "another one"
    assert changes == [("held", "taken by another gateway", "error"), ("taken by another gateway", "held", "info")]


@pytest.mark.parametrize("same_host", [True, False])
async def test_after_a_kill_the_next_gateway_has_the_bus_within_two_seconds(server, monkeypatch: pytest.MonkeyPatch, same_host: bool):
    prefix = f"k{next(PREFIXES)}:"
    bus = RedisBus(server.url, prefix)
    await bus.start()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDS, server.url, prefix, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(30.0):
            assert child.stdout is not None
            assert (await child.stdout.readline()).strip() == b"taken"
        if not same_host:
            monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
        second = lease(bus, "second")
        monkeypatch.setattr(bus_lease, "WAIT_S", 0.2)
        with pytest.raises(BusError, match="first"):
            await second.take()
        monkeypatch.setattr(bus_lease, "WAIT_S", 2.5)
        child.send_signal(signal.SIGKILL)
        await child.wait()
        began_s = asyncio.get_running_loop().time()
        await second.take()
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s < (0.3 if same_host else EXPIRES_S + 0.3)
        await second.close()
    finally:
        if child.returncode is None:
            child.kill()
        await bus.close()
