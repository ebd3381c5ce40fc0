"""The loop that the gateway's tests run on, and a bus on a real server."""

import asyncio
import itertools
from collections.abc import Callable, Mapping

import pytest
import uvloop
from heap_kit import heap_work  # noqa: F401  a fixture
from hmas_lab.memory_bus import MemoryBus
from mqtt_kit import Broker, make_certificates
from redis.asyncio import Redis

from hmas.controller.bus.base import Bus
from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.redis_bus import RedisBus

PREFIXES = itertools.count()


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name.startswith(("test_gateway_", "test_admin_")):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def server(tmp_path):
    server = EmbeddedServer(tmp_path / "bus")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def bus(server):
    bus = RedisBus(server.url)
    await bus.start()
    yield bus
    await bus.close()


@pytest.fixture
async def raw(server):
    client = Redis.from_url(server.url)
    yield client
    await client.aclose()


@pytest.fixture(scope="module")
def module_server(tmp_path_factory):
    """A server for all tests of a module; each test has a prefix of its own."""
    server = EmbeddedServer(tmp_path_factory.mktemp("bus"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["redis", "memory"])
async def each_bus(request):
    """A bus of each kind in turn, on the server of the module and in memory."""
    if request.param == "memory":
        bus: Bus = MemoryBus()
    else:
        bus = RedisBus(request.getfixturevalue("module_server").url, key_prefix=f"t{next(PREFIXES)}:")
    await bus.start()
    yield bus
    await bus.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Certificates of an MQTT broker and its client."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture
async def broker(tmp_path, certificates):
    """A real mosquitto."""
    async with Broker(tmp_path / "broker", certificates) as broker:
        yield broker
