"""What stands before the engines: the product with one of its routers, or a router of another project."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hmas.controller.runtime.ports import free_port
from hmas_lab.as_it_comes import hmas_up
from hmas_lab.processes import stop
from hmas_lab.vllm_engine import until_answered

READY_S = 60.0
PRODUCT = "h-mas: "


class EngineAt(NamedTuple):
    """An engine: its address, and those of its KV events and their replay."""

    url: str
    events: str
    replay: str


class Front(NamedTuple):
    """One front.

    Attributes:
        words: What it is.
        router: The product's router; empty for another project's.
        exact: Whether the product gets the engines' KV events.
        command: Another project's command, below the folder of the peers.
        policy: Its policy.
    """

    words: str
    router: str = ""
    exact: bool = False
    command: tuple[str, ...] = ()
    policy: str = ""


_VLLM = ("vllm-router/bin/vllm-router",)
_SGLANG = ("sglang-router/bin/smg", "launch")
EXACT = f"{PRODUCT}default (exact)"
FRONTS: Mapping[str, Front] = MappingProxyType(
    {
        f"{PRODUCT}round-robin": Front("each engine in turn", "round-robin"),
        f"{PRODUCT}least-loaded": Front("the emptiest engine", "least-loaded"),
        f"{PRODUCT}default": Front("the product as it comes, without agents", "default"),
        EXACT: Front("the same with the engines' KV events", "default", exact=True),
        "vllm-router: cache_aware": Front("vllm-router with its defaults", command=_VLLM, policy="cache_aware"),
        "vllm-router: consistent_hash": Front("vllm-router, by the session's name", command=_VLLM, policy="consistent_hash"),
        "sglang-router: cache_aware": Front("sglang-router with its defaults", command=_SGLANG, policy="cache_aware"),
    }
)
"""Every front by name; the last ones need `make setup-peers`."""


def there(name: str, peers: Path) -> bool:
    """Whether a front can be had here."""
    command = FRONTS[name].command
    return not command or (peers / command[0]).exists()


def running_front(front: Front, engines: Sequence[EngineAt], peers: Path, folder: Path) -> AbstractAsyncContextManager[str]:
    """Starts a front, yields its address, stops it. Its folder is made.

    Raises:
        StudyError, DemoBroken: It does not come up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return _peer(front, engines, peers, folder) if front.command else _product(front, engines, folder)


@asynccontextmanager
async def _product(front: Front, engines: Sequence[EngineAt], folder: Path) -> AsyncIterator[str]:
    entries = []
    for number, engine in enumerate(engines):
        events = {"kv_events": {"endpoint": engine.events, "replay_endpoint": engine.replay, "topic": "kv-events"}} if front.exact else {}
        entries.append({"name": f"vllm-{number}", "kind": "vllm", "url": engine.url, **events})
    config = {"engines": entries, "scheduler": {"routing": front.router}}
    async with hmas_up((), folder, options=("--no-agents",), config=config) as stack:
        yield stack.url


@asynccontextmanager
async def _peer(front: Front, engines: Sequence[EngineAt], peers: Path, folder: Path) -> AsyncIterator[str]:
    port = free_port()
    words = [str(peers / front.command[0]), *front.command[1:], "--host", "127.0.0.1", "--port", str(port)]
    words += ["--worker-urls", *(engine.url for engine in engines), "--policy", front.policy, "--log-level", "error"]
    words += ["--prometheus-port", str(free_port())]
    log = folder / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*words, stdout=output, stderr=output, cwd=folder)
        try:
            url = f"http://127.0.0.1:{port}"
            # It lists the engines' model once it has taken them.
            await until_answered(f"{url}/v1/models", process, log, READY_S)
            yield url
        finally:
            await stop(process)
