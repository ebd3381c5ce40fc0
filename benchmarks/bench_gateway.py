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

import uvloop
from gateway_peers import KEY, PACED_RPS, TOKENS

from controller.bus.embedded import EmbeddedServer
from controller.bus.memory_bus import MemoryBus
from controller.bus.redis_bus import RedisBus
from controller.config.schema import AgentsConfig, BusConfig, Config, EngineConfig, GatewayConfig, SchedulerConfig, TenantConfig
from controller.gateway.serve import serve
from controller.runtime.clock import SystemClock

ROOT = Path(__file__).resolve().parent.parent

CONNECTIONS = (64, 256)
TICK_HZ = os.sysconf("SC_CLK_TCK")


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


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK_HZ


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start(script: str, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, ROOT / "benchmarks" / script, *args], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


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
    out = start("gateway_peers.py", "client", str(port), str(connections), str(seconds), "paced" if paced else "unpaced").communicate()[0]
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
        upstream = start("gateway_peers.py", "upstream", str(up_port))
        gateway = start("bench_gateway.py", "gateway", str(gw_port), f"http://127.0.0.1:{up_port}", folder, bus_url)
        for process in (upstream, gateway):
            stack.callback(stop, process)
        wait_for(up_port, b"/v1/models", b"bench")
        wait_for(gw_port, b"/ready", b"true")
        rows = []
        for connections in CONNECTIONS:
            for paced in (True, False):
                pairs: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
                seconds = args.seconds + (connections / PACED_RPS if paced else 0)
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
    if sys.argv[1:2] == ["gateway"]:
        uvloop.run(run_gateway(int(sys.argv[2]), *sys.argv[3:6]))
    else:
        main()
