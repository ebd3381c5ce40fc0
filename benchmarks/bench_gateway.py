"""What the gateway costs: CPU per request and added TTFT against direct calls, at 64 and 256 connections.

Three processes on loopback: an upstream that does nothing but send 64 events a response, the gateway with authentication, scheduling,
metrics and a message bus, and a client. Direct and gateway runs alternate, so that whatever else the machine does meets both alike. On a
small machine that all three share, trust the ratios.

    python benchmarks/bench_gateway.py [--seconds 1] [--repeats 3] [--out build/bench/gateway.json]
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import orjson
import uvloop

from controller.bus.embedded import EmbeddedServer
from controller.bus.memory_bus import MemoryBus
from controller.bus.redis_bus import RedisBus
from controller.config.schema import AgentsConfig, BusConfig, Config, EngineConfig, GatewayConfig, SchedulerConfig, TenantConfig
from controller.gateway.serve import serve
from controller.runtime.clock import SystemClock

ROOT = Path(__file__).resolve().parent.parent

TOKENS = 64
TOKEN_PACE_S = 0.005
"""In paced runs a token every 5 ms, as a busy engine sends them; unpaced, as fast as the connection takes them."""
CONNECTIONS = (64, 256)
KEY = "sk-bench"
MODEL = "bench"
TICK_HZ = os.sysconf("SC_CLK_TCK")


class Upstream(asyncio.Protocol):
    """Answers every POST with 64 events, one write each, and GETs with a list of models."""

    pace_s = 0.0

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.buffer = b""
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, gap, body = self.buffer.partition(b"\r\n\r\n")
        if not gap or self.transport is None:
            return
        if head.startswith(b"GET"):
            self.buffer = b""
            text = b'{"object":"list","data":[{"id":"bench","object":"model"}]}'
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))
            return
        length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")).split(b":")[1])
        if len(body) < length:
            return
        self.buffer = b""
        Upstream.pace_s = TOKEN_PACE_S if b'"paced"' in body else 0.0
        self.left = TOKENS
        self.transport.write(HEAD)
        self.step()

    def step(self) -> None:
        if self.transport is None:
            return
        self.left -= 1
        if self.left < 0:
            self.transport.write(LAST)
            return
        self.transport.write(EVENT)
        loop = asyncio.get_running_loop()
        if Upstream.pace_s:
            loop.call_later(Upstream.pace_s, self.step)
        else:
            loop.call_soon(self.step)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = chunk(
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = (
    chunk(
        b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
        b'"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    + b"0\r\n\r\n"
)


async def run_upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


async def run_gateway(port: int, upstream: str, folder: str, bus_url: str) -> None:
    config = Config(
        state_dir=folder,
        gateway=GatewayConfig(port=port, admin_port=0, drain_s=1.0),
        tenants={"bench": TenantConfig(key_sha256=[hashlib.sha256(KEY.encode()).hexdigest()])},
        engines=[EngineConfig(name="up", url=upstream, kind="openai", n_run_max=1024)],
        scheduler=SchedulerConfig(policy="edf"),
        bus=BusConfig(url=bus_url),
        agents=AgentsConfig(enabled=bool(bus_url)),
    )
    bus = RedisBus(bus_url) if bus_url else MemoryBus()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(config, bus=bus, clock=SystemClock(), stop=stop)
    await bus.close()


class Client(asyncio.Protocol):
    """One keep-alive connection that asks, reads to the end, and asks again; unpaced at once, paced after a pause."""

    def __init__(self, plan: "Plan") -> None:
        self.plan = plan
        self.transport: asyncio.Transport | None = None
        self.tail = b""
        self.asked_s = 0.0
        self.waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self) -> None:
        if self.transport is None:
            return
        self.waiting = True
        self.asked_s = time.perf_counter()
        self.transport.write(self.plan.request)

    def data_received(self, data: bytes) -> None:
        plan = self.plan
        if self.waiting and b"data:" in (self.tail + data if self.tail else data):
            self.waiting = False
            plan.ttft_s.append(time.perf_counter() - self.asked_s)
        # The upstream's head and its first event are two writes, and any cut may fall between them.
        self.tail = (self.tail + data)[-16:]
        if self.tail.endswith(b"\r\n0\r\n\r\n"):
            self.tail = b""
            plan.done += 1
            if time.perf_counter() < plan.end_s:
                if plan.pause_s:
                    asyncio.get_running_loop().call_later(plan.pause_s, self.ask)
                else:
                    self.ask()
            else:
                plan.rested()

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        self.plan.lost += 1
        self.plan.rested()


class Plan:
    """One run of the client."""

    def __init__(self, host: str, port: int, connections: int, seconds: float, paced: bool) -> None:
        document = {
            "model": MODEL,
            "stream": True,
            "messages": [{"role": "user", "content": "word " * 150}],
            "user": "paced" if paced else "x",
        }
        body = orjson.dumps(document)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {KEY}\r\n"
        self.request = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        self.connections = connections
        self.seconds = seconds
        # Paced: each connection asks about every 2.2 s at 256 connections, so that the three processes stay below the machine's capacity.
        self.pause_s = connections / 140.0 if paced else 0.0
        self.end_s = 0.0
        self.ttft_s: list[float] = []
        self.done = self.lost = self.resting = 0
        self.finished = asyncio.Event()

    def rested(self) -> None:
        self.resting += 1
        if self.resting >= self.connections:
            self.finished.set()


async def run_client(host: str, port: int, connections: int, seconds: float, *, paced: bool) -> dict[str, float]:
    plan = Plan(host, port, connections, seconds, paced)
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(lambda: Client(plan), host, port))[1] for _ in range(connections)]
    begun_s = time.perf_counter()
    plan.end_s = begun_s + seconds
    for number, client in enumerate(clients):
        loop.call_later(number / connections * (plan.pause_s or 0.05), client.ask)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds + plan.pause_s + 10):
            await plan.finished.wait()
    took_s = time.perf_counter() - begun_s
    ordered = sorted(plan.ttft_s)
    lost = plan.lost
    for client in clients:
        if client.transport is not None:
            client.transport.abort()
    return {
        "requests": plan.done,
        "lost": lost,
        "rps": plan.done / took_s,
        "ttft_ms_p50": 1000 * ordered[len(ordered) // 2],
        "ttft_ms_p99": 1000 * ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK_HZ


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start(role: str, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, role, *args], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})


def wait_for(port: int, path: bytes, says: bytes) -> None:
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
            sock.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            if says in sock.recv(4096):
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing answers on port {port}")


def measure(port: int, connections: int, seconds: float, *, paced: bool, upstream: int, gateway: int | None) -> dict[str, float]:
    """One run: what the client saw, and the CPU seconds that each request cost in the upstream and in the gateway."""
    before = cpu_s(upstream), cpu_s(gateway) if gateway else 0.0
    out = start("client", str(port), str(connections), str(seconds), "paced" if paced else "unpaced").communicate()[0]
    after = cpu_s(upstream), cpu_s(gateway) if gateway else 0.0
    result: dict[str, float] = json.loads(out)
    result["upstream_ms"] = 1000 * (after[0] - before[0]) / result["requests"]
    result["gateway_ms"] = 1000 * (after[1] - before[1]) / result["requests"]
    return result


def summarize(direct: list[dict[str, float]], through: list[dict[str, float]]) -> dict[str, float]:
    """Medians over the repeats; added figures are differences of neighbouring runs."""

    def added(name: str) -> float:
        return statistics.median(b[name] - a[name] for a, b in zip(direct, through, strict=True))

    def median(runs: list[dict[str, float]], name: str) -> float:
        return statistics.median(run[name] for run in runs)

    return {
        "direct_ttft_ms_p50": median(direct, "ttft_ms_p50"),
        "added_ttft_ms_p50": added("ttft_ms_p50"),
        "added_ttft_ms_p99": added("ttft_ms_p99"),
        "gateway_cpu_ms_per_request": median(through, "gateway_ms"),
        "upstream_cpu_ms_per_request": median(direct, "upstream_ms"),
        "cpu_over_direct": statistics.median(b["gateway_ms"] / a["upstream_ms"] for a, b in zip(direct, through, strict=True)),
        "rps_direct": median(direct, "rps"),
        "rps_gateway": median(through, "rps"),
        "rps_over_direct": statistics.median(b["rps"] / a["rps"] for a, b in zip(direct, through, strict=True)),
        "requests": sum(run["requests"] for run in direct + through),
        "lost": sum(run["lost"] for run in direct + through),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one run")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of direct and gateway runs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "gateway.json")
    parser.add_argument("--no-bus", action="store_true", help="keep messages in the process instead of a Redis server")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        bus_url = "" if args.no_bus else start_bus(Path(folder), stack)
        up_port, gw_port = free_port(), free_port()
        upstream = start("upstream", str(up_port))
        gateway = start("gateway", str(gw_port), f"http://127.0.0.1:{up_port}", folder, bus_url)
        for process in (upstream, gateway):
            stack.callback(stop, process)
        wait_for(up_port, b"/v1/models", b"bench")
        wait_for(gw_port, b"/ready", b"true")
        rows = []
        for connections in CONNECTIONS:
            for paced in (True, False):
                pairs: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
                seconds = args.seconds + (connections / 140.0 if paced else 0)
                for _ in range(args.repeats):
                    pairs[0].append(measure(up_port, connections, seconds, paced=paced, upstream=upstream.pid, gateway=None))
                    pairs[1].append(measure(gw_port, connections, seconds, paced=paced, upstream=upstream.pid, gateway=gateway.pid))
                row = {"connections": connections, "load": "paced" if paced else "unpaced", **summarize(*pairs)}
                rows.append(row)
                show(row)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"tokens": TOKENS, "bus": bool(bus_url), "repeats": args.repeats, "runs": rows}, indent=2) + "\n")
    print(f"written to {args.out}")


def start_bus(folder: Path, stack: contextlib.ExitStack) -> str:
    server = EmbeddedServer(folder, durable=False)
    url = server.start()
    stack.callback(server.stop)
    return url


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()


def show(row: dict[str, float]) -> None:
    print(
        f"{row['connections']:>4} connections, {row['load']:<8}"
        f" added TTFT p50 {row['added_ttft_ms_p50']:6.2f} ms, p99 {row['added_ttft_ms_p99']:6.2f} ms;"
        f" CPU {row['gateway_cpu_ms_per_request']:.2f} ms a request, {row['cpu_over_direct']:.2f} of the upstream's;"
        f" {row['rps_gateway']:.0f} rps, {row['rps_over_direct']:.2f} of direct; lost {row['lost']:.0f}",
        flush=True,
    )


if __name__ == "__main__":
    role = sys.argv[1] if len(sys.argv) > 1 else ""
    if role == "upstream":
        uvloop.run(run_upstream(int(sys.argv[2])))
    elif role == "gateway":
        uvloop.run(run_gateway(int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]))
    elif role == "client":
        print(
            json.dumps(
                uvloop.run(run_client("127.0.0.1", int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), paced=sys.argv[5] == "paced"))
            )
        )
    else:
        main()
