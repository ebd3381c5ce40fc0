"""What live control costs a real SGLang: writes build/bench/sglang_control.json.

One SGLang with the control plugin takes the same load in turns: twice left alone, which shows what the machine's noise is, and with ten
orders a second, which is 50 times what a gateway asks for. Then come the calls themselves: how long the engine takes to answer one, idle
and under load; and what the plugin's own lines add to a step, measured alone, since no throughput is steady enough to show that.

    python lab/benchmarks/bench_sglang_control.py                # make setup-sglang comes first
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from bench_engine_control import CONCURRENCY, INPUT_TOKENS, ORDERS_RPS, OUTPUT_TOKENS, REQUESTS, ROOT, START_LIMIT_S, against, load
from gateway_proxies import cpu_s, free_port, tree

from hmas.engines.client import EngineClient
from hmas.engines.control import CONTROL_PATH
from hmas.engines.plugin.hmas_engine_plugin.sglang import hooks
from hmas.engines.plugin.hmas_engine_plugin.sglang.control import CAP, Control

OPTIONS = [
    *("--served-model-name", "tiny", "--host", "127.0.0.1", "--device", "cpu", "--attention-backend", "torch_native"),
    *("--disable-cuda-graph", "--max-total-tokens", "16384", "--max-running-requests", "8", "--chunked-prefill-size", "512"),
    *("--disable-radix-cache", "--enable-priority-scheduling", "--default-priority-value", "0", "--sleep-on-idle"),
]
CALLS, CALL_LIMIT_S = 60, 60.0


class Server:
    """SGLang in a session of its own."""

    def __init__(self, python: Path, model: Path, log: Path) -> None:
        self.log, self.port = log, free_port()
        stubs = str(ROOT / "tests" / "engines" / "sglang_stubs")
        environment = os.environ | {"PYTHONPATH": stubs, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1"}
        environment |= {"HMAS_CONTROL_TOKEN": "bench", "SGLANG_PLUGINS": "hmas_control"}
        command = [str(python), "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(self.port), *OPTIONS]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=log.parent, start_new_session=True)
        self.client = EngineClient(name="sglang", url=f"http://127.0.0.1:{self.port}", api_key="bench")

    async def ready(self) -> None:
        end_s = time.monotonic() + START_LIMIT_S
        while b"ready to roll" not in self.log.read_bytes():
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"SGLang did not come up; see {self.log}")
            await asyncio.sleep(0.2)

    def cpu_s(self) -> float:
        """CPU seconds of the engine's processes so far."""
        return sum(cpu_s(pid) for pid in tree(self.process.pid))

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


async def order(client: EngineClient, number: int) -> float:
    """Changes both knobs without holding the load back; milliseconds until the engine has done it."""
    knobs = {"n_run": 8, "token_budget": 512 - number % 64}
    begin_s = time.perf_counter()
    status, data = await client.post(CONTROL_PATH, json.dumps({"knobs": knobs}).encode(), timeout_s=CALL_LIMIT_S)
    if status != 200:
        raise SystemExit(f"an order was refused: {data!r}")
    return 1000 * (time.perf_counter() - begin_s)


async def read(client: EngineClient, _number: int) -> float:
    begin_s = time.perf_counter()
    status, data = await client.get(CONTROL_PATH, timeout_s=CALL_LIMIT_S)
    if status != 200:
        raise SystemExit(f"a call was refused: {data!r}")
    return 1000 * (time.perf_counter() - begin_s)


async def orders(client: EngineClient) -> None:
    number = 0
    while True:
        number += 1
        await order(client, number)
        await asyncio.sleep(1.0 / ORDERS_RPS)


async def measure(server: Server, seed: int, *, ordering: bool) -> dict[str, float]:
    task = asyncio.create_task(orders(server.client)) if ordering else None
    used_s, begin_s = server.cpu_s(), time.perf_counter()
    await load(server.client, seed)
    took_s, used_s = time.perf_counter() - begin_s, server.cpu_s() - used_s
    if task is not None:
        if task.done():
            task.result()
        task.cancel()
        await order(server.client, 0)
    tokens = REQUESTS * OUTPUT_TOKENS
    return {"tokens_per_s": tokens / took_s, "cpu_ms_per_token": 1000 * used_s / tokens}


async def call_latency(client: EngineClient) -> dict[str, dict[str, float]]:
    found = {}
    for state in ("idle", "under load"):
        busy = asyncio.create_task(load(client, 10_000)) if state == "under load" else None
        took: dict[str, list[float]] = {"read": [], "order": []}
        for number in range(CALLS):
            if busy is not None and busy.done():
                busy = asyncio.create_task(load(client, 10_001 + number))
            took["read"].append(await read(client, number))
            took["order"].append(await order(client, number))
            await asyncio.sleep(0.05)
        for name, values in took.items():
            values.sort()
            found[f"{name}, {state}"] = {"p50_ms": median(values), "p95_ms": values[len(values) * 95 // 100], "max_ms": values[-1]}
        if busy is not None:
            await busy
    return found


def added_us_per_step() -> float:
    """Microseconds that the plugin's hook adds to a step that chooses no prompt, which nearly every step is."""
    settings = SimpleNamespace(**{CAP: 8, "num_dp_ranks": 1, "pp_size": 1})
    scheduler = SimpleNamespace(max_running_requests=8, waiting_queue=[])
    setattr(scheduler, hooks.CONTROL, Control(scheduler, lambda _name, _value: True, lambda: settings))
    plan, steps = SimpleNamespace(batch_to_run=None, running_batch=None), 200_000

    def stock(_scheduler: Any, _batch: Any) -> Any:
        return plan

    begin_s = time.perf_counter()
    for _ in range(steps):
        stock(scheduler, None)
    between_s = time.perf_counter()
    for _ in range(steps):
        hooks.get_new_batch_prefill(stock, scheduler, None)
    return 1e6 * (time.perf_counter() - between_s - (between_s - begin_s)) / steps


async def bench(args: argparse.Namespace) -> dict[str, Any]:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    server = Server(args.sglang_python, args.model, args.out.parent / "sglang.log")
    try:
        await server.ready()
        await load(server.client, 1)
        ways = {"left alone": False, "left alone once more": False, "10 orders/s": True}
        rows: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for number in range(args.rounds):
            # Every other round runs the other way about, so that what grows over time meets all alike.
            for way in sorted(ways, reverse=number % 2 == 1):
                rows[way].append(await measure(server, 100 + number, ordering=ways[way]))
        return {
            "load": {"concurrency": CONCURRENCY, "requests": REQUESTS, "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
            "rounds": args.rounds,
            "ways": {way: against(rows["left alone"], row) for way, row in rows.items()},
            "calls": await call_latency(server.client),
            "added_us_per_step": added_us_per_step(),
        }
    finally:
        await server.client.close()
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--sglang-python", type=Path, default=ROOT / "build" / "sglang" / "bin" / "python")
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "tiny-model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "sglang_control.json")
    args = parser.parse_args()
    args.out = args.out.absolute()
    report = asyncio.run(bench(args))
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
