"""What live control costs a real vLLM: writes build/bench/engine_control.json.

Two vLLMs serve side by side, one as it is and one with the control plugin. The same load goes to them in turns: the stock one twice, which
shows what the machine's noise is, the plugin left alone, and the plugin with ten orders a second, which is 50 times what a gateway asks
for. CPU per token is that of the engine's processes. Then come the calls themselves: how long the engine takes to answer one, idle and
under load; and what the plugin's own lines in a step take, measured alone, since no throughput is steady enough to show that.

    python lab/benchmarks/bench_engine_control.py                # make setup-vllm comes first
    python lab/benchmarks/bench_engine_control.py --rounds 20
"""

import argparse
import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
from gateway_proxies import cpu_s, free_port, tree

from hmas.engines.client import EngineClient
from hmas.engines.control import CONTROL_PATH
from hmas.engines.errors import EngineError
from hmas.engines.plugin.hmas_engine_plugin.vllm.control import Control

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = [
    *("--served-model-name", "tiny", "--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "32"),
    *("--max-num-batched-tokens", "1024", "--kv-cache-memory-bytes", "67108864", "--scheduling-policy", "priority"),
    "--no-enable-prefix-caching",
]
PLUGIN = ["--scheduler-cls", "hmas_engine_plugin.vllm.scheduler.HmasScheduler"]
CONCURRENCY, REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS = 16, 64, 128, 64
ORDERS_RPS = 10.0
CALLS, CALL_LIMIT_S = 100, 60.0
START_LIMIT_S = 300


class Server:
    """One vLLM in a session of its own."""

    def __init__(self, python: Path, model: Path, log: Path, *, plugin: bool) -> None:
        self.port = free_port()
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(self.port), *OPTIONS]
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            "HMAS_CONTROL_TOKEN": "bench",
        }
        environment |= {"VLLM_PLUGINS": "hmas_control" if plugin else ""}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command + (PLUGIN if plugin else []), env=environment, stdout=output, stderr=output, cwd=log.parent, start_new_session=True
            )
        self.client = EngineClient(name="plugin" if plugin else "stock", url=f"http://127.0.0.1:{self.port}", api_key="bench")

    async def ready(self) -> None:
        end_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                raise SystemExit(f"vLLM ended while it was starting, code {self.process.returncode}")
            try:
                if (await self.client.get("/health"))[0] == 200:
                    return
            except EngineError:  # it is not listening yet
                pass
            await asyncio.sleep(0.2)
        raise SystemExit(f"vLLM was not ready after {START_LIMIT_S} s")

    def cpu_s(self) -> float:
        """CPU seconds of the engine's processes so far."""
        return sum(cpu_s(pid) for pid in tree(self.process.pid))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


async def ask(client: EngineClient, ids: list[int]) -> None:
    document = {"model": "tiny", "prompt": ids, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0.0, "stream": True}
    response = await client.send("/v1/completions", orjson.dumps(document), {})
    body = b"".join([chunk async for chunk in response.chunks()])
    await response.close()
    if response.status != 200 or not body.endswith(b"data: [DONE]\n\n"):
        raise SystemExit(f"a request failed with status {response.status}: {body[:200]!r}")


async def load(client: EngineClient, seed: int) -> None:
    """REQUESTS requests, CONCURRENCY at a time."""
    prompts = iter(np.random.default_rng(seed).integers(10, 8000, (REQUESTS, INPUT_TOKENS)).tolist())

    async def one_after_another() -> None:
        for ids in prompts:
            await ask(client, ids)

    await asyncio.gather(*(one_after_another() for _ in range(CONCURRENCY)))


async def orders(client: EngineClient) -> None:
    """Ten orders a second that change the knobs without holding the load back: the highest window and budget that are enough."""
    number = 0
    while True:
        number += 1
        knobs = {"n_run": 32 - number % 8, "token_budget": 1024 - number % 64}
        status, data = await client.post(CONTROL_PATH, json.dumps({"knobs": knobs}).encode(), timeout_s=CALL_LIMIT_S)
        if status != 200:
            raise SystemExit(f"an order was refused: {data!r}")
        await asyncio.sleep(1.0 / ORDERS_RPS)


async def measure(server: Server, seed: int, *, ordering: bool) -> dict[str, float]:
    task = asyncio.create_task(orders(server.client)) if ordering else None
    cpu_s, begin_s = server.cpu_s(), time.perf_counter()
    await load(server.client, seed)
    took_s, cpu_s = time.perf_counter() - begin_s, server.cpu_s() - cpu_s
    if task is not None:
        if task.done():
            task.result()
        task.cancel()
    tokens = REQUESTS * OUTPUT_TOKENS
    return {"tokens_per_s": tokens / took_s, "cpu_ms_per_token": 1000 * cpu_s / tokens}


async def calls(client: EngineClient, *, write: bool) -> list[float]:
    """How long each of CALLS calls took, milliseconds, a twentieth of a second apart."""
    took_ms = []
    for number in range(CALLS):
        begin_s = time.perf_counter()
        if write:
            status, data = await client.post(
                CONTROL_PATH, json.dumps({"knobs": {"n_run": 31 + number % 2}}).encode(), timeout_s=CALL_LIMIT_S
            )
        else:
            status, data = await client.get(CONTROL_PATH, timeout_s=CALL_LIMIT_S)
        took_ms.append(1000 * (time.perf_counter() - begin_s))
        if status != 200:
            raise SystemExit(f"a call was refused: {data!r}")
        await asyncio.sleep(0.05)
    return took_ms


async def call_latency(client: EngineClient) -> dict[str, dict[str, float]]:
    found = {}
    for busy in (False, True):
        running = True

        async def keep_busy() -> None:
            seed = 10_000
            while running:  # noqa: B023 - it is this round's own
                seed += 1
                await load(client, seed)

        task = asyncio.create_task(keep_busy()) if busy else None
        for write in (False, True):
            took_ms = sorted(await calls(client, write=write))
            name = f"{'order' if write else 'read'}, {'under load' if busy else 'idle'}"
            found[name] = {"p50_ms": median(took_ms), "p95_ms": took_ms[len(took_ms) * 95 // 100], "max_ms": took_ms[-1]}
        running = False
        if task is not None:
            await task
    return found


async def bench(args: argparse.Namespace) -> dict[str, Any]:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    servers = {
        name: Server(args.vllm_python, args.model, args.out.parent / f"vllm-{name}.log", plugin=name == "plugin")
        for name in ("stock", "plugin")
    }
    try:
        await asyncio.gather(*(server.ready() for server in servers.values()))
        ways = {
            "stock": ("stock", False),
            "stock once more": ("stock", False),
            "plugin idle": ("plugin", False),
            "plugin, 10 orders/s": ("plugin", True),
        }
        for server in servers.values():
            await load(server.client, 1)
        rows: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for number in range(args.rounds):
            # Every other round runs the other way about, so that what grows over time meets all alike.
            for way in sorted(ways, reverse=number % 2 == 1):
                name, ordering = ways[way]
                rows[way].append(await measure(servers[name], 100 + number, ordering=ordering))
        report = {
            "load": {"concurrency": CONCURRENCY, "requests": REQUESTS, "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
            "rounds": args.rounds,
            "ways": {way: against(rows["stock"], row) for way, row in rows.items()},
            "calls": await call_latency(servers["plugin"].client),
            "added_us_per_step": added_us_per_step(),
        }
    finally:
        for server in servers.values():
            await server.client.close()
            server.stop()
    return report


def added_us_per_step() -> float:
    """Microseconds that the plugin's scheduler adds to a step: its two calls around the step of its base class."""
    scheduler = SimpleNamespace(
        max_num_running_reqs=32,
        max_num_active_reqs=32,
        max_num_scheduled_tokens=1024,
        max_model_len=4096,
        running=[],
        scheduler_config=None,
    )
    control, output, steps = Control(scheduler, capped=True), SimpleNamespace(total_num_scheduled_tokens=16), 200_000
    begin_s = time.perf_counter()
    for _ in range(steps):
        control.before_step()
        control.after_step(output)
    return 1e6 * (time.perf_counter() - begin_s) / steps


def against(stock: list[dict[str, float]], row: list[dict[str, float]]) -> dict[str, Any]:
    """Medians, and the median and quartiles of each round's ratio to the stock engine's round."""
    found: dict[str, Any] = {}
    for field in ("tokens_per_s", "cpu_ms_per_token"):
        ratios = sorted(one[field] / other[field] for one, other in zip(row, stock, strict=True))
        low, high = np.quantile(ratios, [0.25, 0.75])
        found[field] = median(one[field] for one in row)
        found[f"{field}_ratio"] = {"median": median(ratios), "p25": float(low), "p75": float(high)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--vllm-python", type=Path, default=ROOT / "build" / "vllm" / "bin" / "python")
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "tiny-model")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "engine_control.json")
    args = parser.parse_args()
    args.out = args.out.absolute()
    report = asyncio.run(bench(args))
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
