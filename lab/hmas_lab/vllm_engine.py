"""A real vLLM on this machine's CPU as the engine of a comparison, or several: their processes, and their readiness."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated, ClassVar

import aiohttp
import msgspec
from msgspec import Meta

from hmas.controller.runtime.ports import free_port
from hmas.demo.site import DemoBroken
from hmas_lab.cores import core_numbers, only_on
from hmas_lab.processes import stop
from hmas_lab.throttle import throttled

READY_S = 240.0
WHOLE_PROMPTS = ("--no-enable-chunked-prefill",)
"""For loads whose requests have a seed: vLLM 0.32 on a CPU ends where a step computes a part of the prompt of such a request."""
ROOT = Path(__file__).resolve().parents[2]


class VllmServer(msgspec.Struct, frozen=True, kw_only=True):
    """How vLLM is started. What is not named here stays at vLLM's own default, its scheduler's limits among them.

    Attributes:
        python: The interpreter of the environment that holds vLLM.
        model: Directory of the model, such as scripts/build_tiny_model.py makes.
        max_num_seqs: vLLM's own concurrency cap; well above any window that makes sense, so that "the engine's default" is not cut by it.
        kv_cache_bytes: Size of its KV cache.
        cores: Cores its worker computes on, as VLLM_CPU_OMP_THREADS_BIND takes them. One by default: worker threads wait for each other at
            every step, so a second one that shares its core with the gateway or the load generator makes all of them slow.
        pinned: Whether all of it stays on these cores, its front end too, and not the worker alone.
        share: Of the time in which it may run once it is ready; below 1 it is stopped and continued in turn (`hmas_lab.throttle`).
        flags: Further words of its command line.
    """

    python: Path
    model: Path
    max_model_len: int = 4096
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_cache_bytes: int = 256 << 20
    cores: str = "0"
    pinned: bool = False
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    flags: tuple[str, ...] = ()

    hardware_flags: ClassVar[tuple[str, ...]] = ("--enforce-eager",)

    def command(self, port: int, model_name: str) -> list[str]:
        """Command line of the server."""
        options = {
            "--model": str(self.model.resolve()),
            "--served-model-name": model_name,
            "--host": "127.0.0.1",
            "--port": str(port),
            "--max-model-len": str(self.max_model_len),
            "--max-num-seqs": str(self.max_num_seqs),
            "--logits-processors": "hmas_lab.forced_length:ForcedLength",
            "--uvicorn-log-level": "warning",
        }
        words = [word for pair in (options | self.hardware_options()).items() for word in pair]
        # Every run sends the same prompts: with a prefix cache all but the first would skip their prefill.
        flags = [*self.hardware_flags, "--no-enable-prefix-caching", *self.flags]
        return [str(self.python.absolute()), "-m", "vllm.entrypoints.openai.api_server", *words, *flags]

    def hardware_options(self) -> dict[str, str]:
        """What its hardware asks for: words of the command line, and their values."""
        return {
            "--dtype": "float32",
            "--max-num-batched-tokens": str(self.max_num_batched_tokens),
            "--kv-cache-memory-bytes": str(self.kv_cache_bytes),
        }


@asynccontextmanager
async def running_vllm(server: VllmServer, folder: Path, model_name: str) -> AsyncIterator[str]:
    """Starts vLLM, waits until it is healthy, yields its address, stops it.

    Raises:
        DemoBroken: It does not start, or not within four minutes.
    """
    for path in (server.python, server.model):
        if not path.exists():
            raise DemoBroken(f"{path} is not there; `make setup-vllm` installs vLLM and builds the model")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / "vllm.log"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "lab"), os.environ.get("PYTHONPATH")))),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": server.cores,
    }
    with log.open("wb") as output:
        with only_on(core_numbers(server.cores)) if server.pinned else nullcontext():
            process = await asyncio.create_subprocess_exec(
                *server.command(port, model_name), stdout=output, stderr=output, env=environment, cwd=folder, start_new_session=True
            )
        try:
            await until_answered(f"{url}/health", process, log)
            async with throttled(process.pid, server.share) if server.share < 1.0 else nullcontext():
                yield url
        finally:
            await stop(process)


@asynccontextmanager
async def running_each(servers: Mapping[str, VllmServer], folder: Path, model_name: str) -> AsyncIterator[dict[str, str]]:
    """Starts several, one after another, each with a folder of its own name for its log; yields their addresses by name, stops them.

    Raises:
        DemoBroken: One does not start.
    """
    async with AsyncExitStack() as exits:
        urls = {}
        for name, server in servers.items():
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            urls[name] = await exits.enter_async_context(running_vllm(server, place, model_name))
        yield urls


async def until_answered(url: str, process: asyncio.subprocess.Process, log: Path, within_s: float = READY_S) -> None:
    """Waits until a server that was started answers GET of this address with 200.

    Raises:
        DemoBroken: It ends, or does not get there in time.
    """
    try:
        async with asyncio.timeout(within_s), aiohttp.ClientSession() as session:
            while True:
                if process.returncode is not None:
                    raise DemoBroken(f"the server ended with status {process.returncode} while starting; see {log}")
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.5)
    except TimeoutError as error:
        raise DemoBroken(f"{url} was not there within {within_s:g} s; see {log}") from error
