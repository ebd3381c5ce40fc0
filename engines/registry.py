"""The kinds of engines, and their detection at the start and after each outage: an engine may be replaced while the gateway serves."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from hmas.engines.base import EngineResponse, EngineSnapshot, KnobReport, Knobs
from hmas.engines.client import EngineClient
from hmas.engines.errors import EngineError
from hmas.engines.openai import OpenAIEngine
from hmas.engines.sglang.adapter import SglangEngine
from hmas.engines.sim.adapter import SimEngine
from hmas.engines.vllm.adapter import VllmEngine

AUTO = "auto"
"""The kind of an engine that is asked what it is. Only built-in kinds are detected."""
_adapters: dict[str, type[OpenAIEngine]] = {"openai": OpenAIEngine, "vllm": VllmEngine, "sglang": SglangEngine, "sim": SimEngine}
ADAPTERS: Mapping[str, type[OpenAIEngine]] = MappingProxyType(_adapters)
"""Adapters by the kind that the configuration uses: the built-in ones, then those of plugins."""


def add_adapter(kind: str, adapter: Any) -> None:
    """Adds a plugin's adapter; called only at the start of a process (`hmas.controller.config.plugins`).

    Raises:
        EngineError: It is not a class that derives from `OpenAIEngine` and has this kind.
    """
    if not (isinstance(adapter, type) and issubclass(adapter, OpenAIEngine)):
        raise EngineError(f"{adapter!r} is no adapter; allowed: a class that derives from hmas.engines.openai.OpenAIEngine")
    if adapter.kind != kind:
        raise EngineError(f"{adapter!r} has the kind {adapter.kind!r}; allowed: {kind!r}, as its entry point")
    _adapters[kind] = adapter


class ConnectedEngine:
    """One engine, used through the adapter of its kind. See `hmas.engines.base.Engine`.

    Until the engine has answered, it is treated as a plain OpenAI-compatible server. Its kind is detected again with the first snapshot
    after an outage. A change of adapter does not disturb responses in flight, because all adapters share one client.
    """

    def __init__(self, client: EngineClient, kind: str, control: EngineClient | None = None) -> None:
        self.name = client.name
        self._client = client
        self._control = control
        self._kind = kind
        self._adapter = ADAPTERS["openai" if kind == AUTO else kind](client, control)
        self._known = False
        self.capabilities = self._adapter.capabilities

    async def send(self, path: str, body: bytes, headers: Mapping[str, str], *, request_id: str, priority: int = 0) -> EngineResponse:
        """As `Engine.send`."""
        return await self._adapter.send(path, body, headers, request_id=request_id, priority=priority)

    async def call(self, method: str, path: str) -> tuple[int, bytes]:
        """As `Engine.call`."""
        return await self._adapter.call(method, path)

    async def abort(self, request_id: str) -> bool:
        """As `Engine.abort`."""
        return await self._adapter.abort(request_id)

    async def snapshot(self, now_s: float) -> EngineSnapshot:
        """As `Engine.snapshot`; detects the engine's kind first if it is not known."""
        if not self._known:
            try:
                kind = self._kind if self._kind != AUTO else await detect(self._client)
            except EngineError as error:
                return EngineSnapshot(engine=self.name, taken_s=now_s, healthy=False, detail=str(error))
            self._adapter = ADAPTERS[kind](self._client, self._control)
            self._known = True
        snapshot = await self._adapter.snapshot(now_s)
        self.capabilities = self._adapter.capabilities
        self._known = snapshot.healthy
        return snapshot

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """As `Engine.apply_knobs`."""
        return await self._adapter.apply_knobs(knobs)

    async def close(self) -> None:
        """As `Engine.close`."""
        await self._adapter.close()


async def detect(client: EngineClient) -> str:
    """Detects an engine's kind from the version that it reports and from its metrics or loads.

    Raises:
        EngineUnavailable: The engine does not answer.
    """
    status, data = await client.get("/version")
    version = ""
    if status == 200:
        try:
            document = orjson.loads(data)
            version = str(document.get("version", "")) if isinstance(document, dict) else ""
        except orjson.JSONDecodeError:
            version = ""
    if version.startswith("sim/"):
        return "sim"
    if version:
        status, data = await client.get("/metrics")
        if status == 200 and b"vllm:num_requests_running" in data:
            return "vllm"
    status, data = await client.get("/v1/loads?include=core")
    if status == 200 and b'"num_running_reqs"' in data:
        return "sglang"
    return "openai"


async def connect_engine(
    *,
    name: str,
    url: str,
    kind: str = AUTO,
    api_key: str = "",
    control_token: str = "",
    connect_timeout_s: float = 5.0,
    idle_timeout_s: float = 120.0,
) -> ConnectedEngine:
    """Makes an engine object, which is ready for use even if the engine does not answer yet.

    The URL has no path; `kind` is a name of `ADAPTERS`. Key and token, empty for none, are sent as bearer tokens to the engine and to its
    control plugin. An answer ends after a silence of `idle_timeout_s` in its middle.

    Raises:
        EngineError: There is no such kind.
    """
    if kind != AUTO and kind not in ADAPTERS:
        raise EngineError(f"engine {name}: kind is {kind!r}; allowed: {AUTO}, {', '.join(ADAPTERS)}")
    client = EngineClient(name=name, url=url, api_key=api_key, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s)
    control = None
    if control_token:
        control = EngineClient(
            name=name, url=url, api_key=control_token, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s
        )
    engine = ConnectedEngine(client, kind, control)
    try:
        await engine.snapshot(0.0)
    except BaseException:
        # Nobody else could close it: the caller gets no adapter, or was cancelled.
        await engine.close()
        raise
    return engine
