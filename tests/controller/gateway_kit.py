"""A whole gateway in front of real embedded engines, on real sockets, with the bus in memory."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import msgspec
import orjson
from aiohttp import web
from hmas_lab.memory_bus import MemoryBus
from sim_faults import faulty_app
from typing_kit import known

from hmas.controller.admin.client import AdminClient
from hmas.controller.admin.token import read_token
from hmas.controller.bus.base import Delivery
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.config.schema import AgentsConfig, Config, EngineConfig, SchedulerConfig
from hmas.controller.config.section import GatewayConfig, TenantConfig
from hmas.controller.core.messages import TELEMETRY, Completion
from hmas.controller.gateway.app import Gateway
from hmas.controller.gateway.control_loop import override_watcher as watch
from hmas.controller.gateway.process import Started, serve
from hmas.controller.runtime.clock import SystemClock
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
    kv_blocks=1024,
    kv_bytes_per_token=1024,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    max_model_len=4096,
)
MODEL = "tiny"


def key_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def chat(text: str = "hello there", *, tokens: int = 8, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """A chat request whose answer has `tokens` tokens."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": stream, "sim": {"output_tokens": tokens}}
    return body | fields


@dataclass
class Sim:
    """One served engine."""

    name: str
    model: EngineModel
    runner: web.AppRunner
    port: int
    bodies: list[bytes] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def kill(self) -> None:
        """Takes the server away, connections and all."""
        for connection in list(known(self.runner.server).connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self.runner.cleanup()


async def start_sim(name: str, profile: Profile = FAST, *, port: int = 0, model: str = MODEL) -> Sim:
    engine = EngineModel(profile)
    app = faulty_app(engine, model, name)
    bodies: list[bytes] = []
    heads: list[dict[str, str]] = []

    @web.middleware
    async def record(request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        if request.method == "POST" and request.path.startswith("/v1/"):
            bodies.append(await request.read())
            heads.append({name.lower(): value for name, value in request.headers.items()})
        return await handler(request)

    app.middlewares.insert(0, record)
    runner, served_port = await start(app, port=port, grace_s=0.05)
    return Sim(name, engine, runner, served_port, bodies, heads)


@dataclass
class Answer:
    """One answer as a client saw it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """Decoded events of a stream; `[DONE]` stays text."""
        assert self.body.endswith(b"\n\n"), self.body[-200:]
        datas = [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n") if event.startswith(b"data:")]
        return ["[DONE]" if data == b"[DONE]" else orjson.loads(data) for data in datas]

    @property
    def text(self) -> str:
        deltas = [choice["delta"].get("content") or "" for event in self.events if event != "[DONE]" for choice in event.get("choices", [])]
        return "".join(deltas)


@dataclass
class Rig:
    """A running gateway with its engines, and a client's session."""

    gateway: Gateway
    url: str
    admin_url: str
    sims: list[Sim]
    bus: MemoryBus
    session: aiohttp.ClientSession
    stop: asyncio.Event
    hurry: asyncio.Event
    serving: "asyncio.Task[None]"
    overrides: Path

    async def post(self, document: object, path: str = "/v1/chat/completions", **kwargs: Any) -> Answer:
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        async with self.session.post(self.url + path, data=body, **kwargs) as response:
            return await _answer(response)

    async def get(self, path: str, **kwargs: Any) -> Answer:
        async with self.session.get(self.url + path, **kwargs) as response:
            return await _answer(response)

    @property
    def operator(self) -> AdminClient:
        """The CLI's client, with the token that the gateway has made."""
        return AdminClient(self.admin_url, token_file=self.overrides.parent / ADMIN_TOKEN_FILE)

    async def admin(self, method: str, path: str, document: object = None, headers: dict[str, str] | None = None) -> Answer:
        """A request to the operators' API; `headers` replace those that such a request has."""
        token = read_token(self.overrides.parent / ADMIN_TOKEN_FILE)
        own = {"authorization": f"Bearer {token}", "content-type": "application/json"} if headers is None else headers
        data = None if document is None else orjson.dumps(document)
        async with self.session.request(method, self.admin_url + path, data=data, headers=own) as response:
            return await _answer(response)

    async def completions(self) -> list[Completion]:
        messages = await self.bus.latest(TELEMETRY, 20_000)
        return [message for message in messages if isinstance(message, Completion)]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.gateway.event_log.newest(1000) if event["kind"] == kind]

    def balanced(self) -> bool:
        """Whether every submitted request is in exactly one place, and nothing is under way."""
        self.gateway.scheduler.check_conservation()
        counts = self.gateway.scheduler.counts()
        return not self.gateway.manager.active and counts.arrived == sum(counts.ended.values())


async def _answer(response: aiohttp.ClientResponse) -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, await response.read())


def make_config(sims: list[Sim], folder: Path, **parts: Any) -> Config:
    """A configuration without authentication; `parts` replace whole sections."""
    sections: dict[str, Any] = {
        "state_dir": str(folder),
        "gateway": GatewayConfig(port=0, admin_port=0, no_auth=True, drain_s=2.0),
        "engines": [EngineConfig(name=sim.name, url=sim.url) for sim in sims],
        "scheduler": SchedulerConfig(policy="fcfs", tick_s=0.02),
        "agents": AgentsConfig(stale_after_s=5.0),
    }
    if "engines_config" in parts:
        sections["engines"] = parts.pop("engines_config")
    return Config(**(sections | parts))


def gateway_config(**fields: Any) -> GatewayConfig:
    return msgspec.structs.replace(GatewayConfig(port=0, admin_port=0, no_auth=True, drain_s=2.0), **fields)


TWO_TENANTS = {
    "acme": TenantConfig(key_sha256=[key_hash("sk-acme")], weight=3.0, min_ttft_ms=500.0, best_priority=-5),
    "zeta": TenantConfig(key_sha256=[key_hash("sk-zeta")]),
}


@asynccontextmanager
async def running(
    folder: Path, *, engines: int = 1, profile: Profile = FAST, sims: list[Sim] | None = None, bus: MemoryBus | None = None, **parts: Any
) -> AsyncIterator[Rig]:
    """A gateway that serves until the block ends; then it must have ended cleanly with its books in order."""
    sims = sims or [await start_sim(f"sim-{number}", profile) for number in range(1, engines + 1)]
    bus = bus or MemoryBus()
    stop, hurry = asyncio.Event(), asyncio.Event()
    ready: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(make_config(sims, folder, **parts), bus=bus, clock=SystemClock(), on_ready=ready.set_result, stop=stop, hurry=hurry)
    )
    # The directory is looked at twice a second; tests have no half second to lose.
    impatient = mock.patch.object(watch, "SCAN_S", 0.03)
    impatient.start()
    try:
        begun: list[asyncio.Future[Any]] = [serving, ready]
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        started = ready.result()
        json_type = {"content-type": "application/json"}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=json_type) as session:
            overrides = folder / "overrides"
            yield Rig(started.gateway, started.url, started.admin_url, sims, bus, session, stop, hurry, serving, overrides)
    finally:
        impatient.stop()
        stop.set()
        await asyncio.wait([serving], timeout=10)
        for sim in sims:
            await sim.runner.cleanup()
        await bus.close()
    await serving
    started.gateway.scheduler.check_conservation()


async def eventually(condition: Callable[[], Any], timeout_s: float = 5.0) -> None:
    """Returns as soon as the condition holds; fails where it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.005)


def delivered(deliveries: list[Delivery]) -> list[Any]:
    return [delivery.message for delivery in deliveries]


@asynccontextmanager
async def most_held(sim: Sim) -> AsyncIterator[list[int]]:
    """Yields a list whose only entry is the most sequences that an engine has had at once so far."""
    most = [0]

    async def watch() -> None:
        while True:
            most[0] = max(most[0], sim.model.running + sim.model.waiting)
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    try:
        yield most
    finally:
        watcher.cancel()
