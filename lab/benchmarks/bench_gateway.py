"""What the gateway costs, with direct calls as the unit and other proxies beside it: writes build/bench/gateway.json.

Processes on loopback: an upstream that does nothing but send 64 events a response, the gateway with authentication, scheduling, metrics,
accounting and a message bus, and a client. Runs go round robin over all proxies, so that whatever else the machine does meets all alike. On
a small machine that all of them share, trust the ratios.

    python lab/benchmarks/bench_gateway.py                              # direct and H-MAS alone, as `make bench` has it
    python lab/benchmarks/bench_gateway.py --peers build/peers          # and every peer that is there (`make setup-peers`)
    python lab/benchmarks/bench_gateway.py --only streams               # 2,000 streams held; `cost`: CPU, TTFT and throughput
    python lab/benchmarks/bench_gateway.py --only cost --before DIR     # and the same of another checkout
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from gateway_peers import KEY, PACED_RPS, TOKENS, raise_file_limit
from gateway_proxies import PEERS, NotThere, Proxy, cpu_s, free_port, start_peer, stop, wait_until_it_answers
from gateway_tables import DIRECT, OURS, cost_table, ratio, streams_text, summarize

from hmas.controller.bus.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[2]
CONNECTIONS = (64, 256)
LOADS = ("paced", "unpaced")
PARTS = ("cost", "streams")
SLOW = 2.0
"""A proxy that takes this many times a run's planned length is so far behind that it is not run again: its row says how often it was."""
STREAM_TOKENS = 32


def configuration(port: int, upstream: str, folder: Path, bus_url: str) -> dict[str, Any]:
    """Authentication, scheduling, metrics and accounting as they are by default, and a window wider than any load here."""
    return {
        "state_dir": str(folder),
        "gateway": {"port": port, "admin_port": 0, "drain_s": 1.0},
        "tenants": {"bench": {"key_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}},
        "engines": [{"name": "up", "url": upstream, "kind": "openai", "n_run_max": 4096}],
        "scheduler": {"policy": "edf"},
        "bus": {"url": bus_url},
        "agents": {"enabled": bool(bus_url)},
        "logging": {"level": "error"},
    }


class Bench:
    """Upstream, bus and proxies of one call, and the runs on them."""

    def __init__(self, args: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> None:
        self.args = args
        self.folder = folder
        self.stack = stack
        self.begun_s = time.monotonic()
        port = free_port()
        self.upstream = self._process(Proxy("upstream", port), [ROOT / "lab/benchmarks" / "gateway_peers.py", "upstream", port], folder)
        self.direct = Proxy(DIRECT, self.upstream.port)
        wait_until_it_answers(self.direct)
        self.missing: dict[str, str] = {}

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.begun_s

    def _process(self, proxy: Proxy, command: list[object], place: Path, path: str = "") -> Proxy:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT))))}
        proxy.process = subprocess.Popen([sys.executable, *map(str, command)], env=environment, cwd=place, start_new_session=True)
        self.stack.callback(stop, proxy)
        return proxy

    def gateway(self, name: str = OURS, compiled: str = "") -> Proxy:
        """A gateway of its own, with a bus of its own."""
        place = self.folder / f"{name}-{time.monotonic_ns()}"
        place.mkdir()
        bus_url, bus_pid = "", 0
        if not self.args.no_bus:
            server = EmbeddedServer(place, durable=False)
            bus_url = server.start()
            bus_pid = server.pid or 0
            self.stack.callback(server.stop)
        proxy = Proxy(name, free_port(), bus_pid=bus_pid)
        config = place / "hmas.yaml"
        # JSON is YAML.
        config.write_text(json.dumps(configuration(proxy.port, f"http://127.0.0.1:{self.upstream.port}", place, bus_url)))
        self._process(proxy, ["-m", "hmas", "run", "gateway", "--config", config], place, compiled)
        wait_until_it_answers(proxy)
        return proxy

    def proxies(self) -> list[Proxy]:
        """All that take part, direct calls first; what cannot is in `missing`."""
        wanted = self.args.proxies
        found = [self.direct]
        if not wanted or OURS in wanted:
            found.append(self.gateway())
        if self.args.compiled:
            found.append(self.gateway("hmas-compiled", str(self.args.compiled.absolute())))
        if self.args.before:
            found.append(self.gateway("hmas-before", str(self.args.before.absolute())))
        for name in PEERS if self.args.peers else ():
            if wanted and name not in wanted:
                continue
            try:
                proxy = start_peer(name, self.args.peers.absolute(), self.folder, self.upstream.port)
            except (NotThere, OSError) as error:
                self.missing[name] = str(error)
                say(f"{name}: left out: {error}")
                continue
            self.stack.callback(stop, proxy)
            found.append(proxy)
            say(f"{name} {proxy.version} is up")
        return found

    def cost(self) -> list[dict[str, Any]]:
        """CPU, TTFT and throughput of every proxy at each number of connections, paced and unpaced."""
        proxies = self.proxies()
        cells = [(connections, load) for connections in CONNECTIONS for load in LOADS]
        runs: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
        slow: set[tuple[str, int, str]] = set()
        for number in range(self.args.repeats):
            begun_s = self.spent_s
            for connections, load in cells:
                # Rotated, so that none always follows the same neighbour.
                for proxy in [*proxies[number % len(proxies) :], *proxies[: number % len(proxies)]]:
                    key = (proxy.name, connections, load)
                    if key not in slow:
                        run = self.measure(proxy, connections, load)
                        runs.setdefault(key, []).append({**run, "round": number})
                        if run["took_s"] > SLOW * (run["planned_s"] + 1.0):
                            slow.add(key)
            say(f"round {number + 1} of {self.args.repeats} done, {self.spent_s:.0f} s so far")
            if self.spent_s + (self.spent_s - begun_s) > self.args.budget:
                say(f"no further round fits into the {self.args.budget:g} s of --budget")
                break
        rows = [
            summarize(proxy, connections, load, runs[DIRECT, connections, load], runs[proxy.name, connections, load])
            for connections, load in cells
            for proxy in proxies
            if proxy.name != DIRECT
        ]
        rows += [{"proxy": name, "missing": reason} for name, reason in self.missing.items()]
        return rows

    def measure(self, proxy: Proxy, connections: int, load: str) -> dict[str, Any]:
        """One run: what the client saw, and the CPU time that each request cost in the upstream and in the proxy."""
        # Paced clients pause between two requests; the run is longer by that pause, so that each connection has its turn.
        seconds = self.args.seconds + (connections / PACED_RPS if load == "paced" else 0.0)
        before = cpu_s(self.upstream.pid), proxy.cpu_s(), cpu_s(proxy.bus_pid)
        command = [
            sys.executable,
            ROOT / "lab/benchmarks" / "gateway_peers.py",
            "client",
            str(proxy.port),
            str(connections),
            str(seconds),
            load,
        ]
        out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        after = cpu_s(self.upstream.pid), proxy.cpu_s(), cpu_s(proxy.bus_pid)
        result: dict[str, Any] = json.loads(out)
        served = max(1, result["requests"])
        if result["trouble"]:
            proxy.trouble.append(f"{connections} {load}: {result['trouble']}")
        return result | {
            "upstream_ms": 1000 * (after[0] - before[0]) / served,
            "proxy_ms": 1000 * (after[1] - before[1]) / served,
            "bus_ms": 1000 * (after[2] - before[2]) / served,
            "planned_s": seconds,
        }

    def streams(self) -> dict[str, Any]:
        """Many streams held at once: latency in the first and the last quarter beside direct calls, and memory per stream."""
        args = self.args
        gateway = self.gateway()
        # What is loaded and allocated once is no cost of a stream.
        warm_up = self.hold(gateway, min(64, args.streams), 1.0)
        time.sleep(1.0)
        idle = gateway.rss_bytes()
        direct, through = self.hold(self.direct, args.streams, args.hold), self.hold(gateway, args.streams, args.hold)
        open_rss, after = median(through["rss_bytes"]) if through["rss_bytes"] else 0, gateway.rss_bytes()
        stop(gateway)
        return {
            "streams": args.streams,
            "pace_ms": 1000 * args.pace,
            "tokens": STREAM_TOKENS,
            "seconds": args.hold,
            "direct": {key: value for key, value in direct.items() if key != "rss_bytes"},
            OURS: {key: value for key, value in through.items() if key != "rss_bytes"},
            "flat": {
                f"{name}_p{q}": ratio(through["quarters"][-1][f"{name}_p{q}"], through["quarters"][0][f"{name}_p{q}"])
                for name in ("ttft_ms", "gap_ms")
                for q in (50, 99)
            },
            "rss_idle_mb": idle / 2**20,
            "rss_open_mb": open_rss / 2**20,
            "rss_after_mb": after / 2**20,
            "memory_per_stream_kb": (open_rss - idle) / args.streams / 1024,
            "warm_up_lost": warm_up["lost"],
        }

    def hold(self, proxy: Proxy, streams: int, seconds: float) -> dict[str, Any]:
        """One run of `gateway_streams.py`; `rss_bytes` are the proxy's resident sizes while all streams were open."""
        numbers = [proxy.port, streams, seconds, self.args.pace, STREAM_TOKENS]
        client = subprocess.Popen(
            [sys.executable, ROOT / "lab/benchmarks" / "gateway_streams.py", *map(str, numbers)], stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        client.stdout.readline()
        before_s, sizes, end_s = proxy.cpu_s(), [], time.monotonic() + seconds
        while time.monotonic() < end_s and client.poll() is None:
            time.sleep(min(1.0, seconds / 4))
            sizes.append(proxy.rss_bytes())
        used_s = proxy.cpu_s() - before_s
        found: dict[str, Any] = json.loads(client.communicate()[0])
        return found | {"rss_bytes": sizes, "cpu_share": used_s / seconds}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parts(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {', '.join(PARTS)}")
    return names


def chosen(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in (OURS, *PEERS)]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; allowed: {', '.join((OURS, *PEERS))}")
    return names


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=parts, default=list(PARTS), help="which parts, with commas between: cost, streams")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run")
    parser.add_argument("--repeats", type=int, default=3, help="rounds over all proxies")
    parser.add_argument("--budget", type=float, default=440.0, help="no round begins that would end after so many seconds in all")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments; without it there are none")
    parser.add_argument("--proxies", type=chosen, default=[], help="only these beside direct calls, with commas between")
    parser.add_argument("--compiled", type=Path, help="a compiled tree (`make compile`), measured as one more proxy")
    parser.add_argument("--before", type=Path, help="another checkout (`git worktree add`), measured as one more proxy")
    parser.add_argument("--streams", type=int, default=2000, help="streams to hold open")
    parser.add_argument("--hold", type=float, default=32.0, help="seconds for which they are held once all are open")
    parser.add_argument("--pace", type=float, default=0.25, help="seconds between two events of a stream")
    parser.add_argument("--no-bus", action="store_true", help="keep messages in the process instead of a Redis server")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "gateway.json")
    args = parser.parse_args()
    for name in ("seconds", "repeats", "budget", "streams", "hold", "pace"):
        if getattr(args, name) <= 0:
            parser.error(f"--{name} is {getattr(args, name)}; allowed: more than 0")
    return args


def main() -> None:
    args = options()
    files = raise_file_limit()
    if "streams" in args.only and files < 2 * args.streams + 100:
        raise SystemExit(f"{args.streams} streams need {2 * args.streams + 100} open files, {files} are allowed; raise `ulimit -Hn`")
    document: dict[str, Any] = {"tokens": TOKENS, "bus": not args.no_bus, "seconds": args.seconds, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        bench = Bench(args, Path(folder), stack)
        if "streams" in args.only:
            # First, while the upstream and the machine are fresh and no peer holds memory.
            document["streams"] = bench.streams()
            print(streams_text(document["streams"]), flush=True)
        if "cost" in args.only:
            document["runs"] = bench.cost()
            print(cost_table(document["runs"]), flush=True)
            for name, reason in bench.missing.items():
                print(f"{name}: {reason}", flush=True)
        document["elapsed_s"] = bench.spent_s
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=2) + "\n")
    say(f"written to {args.out}, {document['elapsed_s']:.0f} s in all")


if __name__ == "__main__":
    main()
