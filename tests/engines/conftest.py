"""A real embedded engine on a real socket, fast enough for tests."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import aiohttp
import orjson
import pytest
from aiohttp import web
from sim_faults import faulty_app
from vllm_server import served

from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile
from hmas.engines.sim.server import start

FAST = Profile(
    name="fast",
    gpu="none",
    model="none",
    source="made up for the tests",
    step_ms=1.0,
    prefill_ms_per_token=0.001,
    prefill_ms_per_ktoken_sq=0.0,
    decode_ms_per_seq=0.0,
    decode_ms_per_kv_ktoken=0.0,
    block_size=16,
    kv_blocks=256,
    kv_bytes_per_token=1024,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    max_model_len=2048,
)


@dataclass
class Sim:
    """One served engine."""

    model: EngineModel
    runner: web.AppRunner
    port: int
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def post(self, path: str, document: object, **kwargs: object) -> tuple[int, dict]:
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        async with self.session.post(self.url + path, data=body, **kwargs) as response:
            return response.status, orjson.loads(await response.read())

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.read()

    async def events(self, path: str, document: dict, **kwargs: object) -> list[dict | str]:
        """The decoded events of a streamed answer."""
        async with self.session.post(self.url + path, json=document | {"stream": True}, **kwargs) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            return decode_events(await response.read())

    @staticmethod
    def decode(body: bytes) -> list[dict | str]:
        return decode_events(body)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits, with a bound, for the engine to come into a state."""
        deadline_s = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline_s, "the engine never came into the state waited for"
            await self.get("/health")

    async def stop(self) -> None:
        await self.runner.cleanup()


def decode_events(body: bytes) -> list[dict | str]:
    assert body.endswith(b"\n\n")
    events = []
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        assert event.startswith("data: ")
        data = event.removeprefix("data: ")
        events.append(data if data == "[DONE]" else orjson.loads(data))
    return events


StartSim = Callable[..., Awaitable[Sim]]


@pytest.fixture
async def start_sim() -> AsyncIterator[StartSim]:
    running: list[Sim] = []

    async def begin(profile: Profile = FAST, *, fault: str | None = None, port: int = 0, **model_options: object) -> Sim:
        model = EngineModel(profile, **model_options)
        app = faulty_app(model, "tiny", "sim-1", fault)
        runner, port = await start(app, port=port, grace_s=0.2)
        running.append(Sim(model, runner, port, aiohttp.ClientSession()))
        return running[-1]

    yield begin
    for sim in running:
        await sim.session.close()
        await sim.stop()


@pytest.fixture
async def sim(start_sim: StartSim) -> Sim:
    return await start_sim()


@pytest.fixture(scope="session")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The one real vLLM of a test run."""
    yield from served(tmp_path_factory.mktemp("vllm") / "vllm.log")
