"""Perception and prediction as real processes on a real bus, driven as a gateway drives them: the other half of `bench_agents.py`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.messages import COSTS, FEATURES, Completion, InstanceView, RequestCost, RequestNotice, SystemSnapshot
from hmas.controller.core.types import OutcomeKind
from hmas.controller.runtime.clock import SystemClock
from hmas.engines.base import EngineSnapshot

INSTANCES = 4
CYCLE_S = 0.1
QUEUED = 12
READY_S = 60.0
LEARNT = 400
"""Completions that the models have seen before anything is timed: their memories are not empty in service either."""


def snapshot(now_s: float) -> SystemSnapshot:
    """A cycle's snapshot of four busy instances."""
    views = [
        InstanceView(
            name=f"engine-{number}",
            in_flight=20 + number,
            in_flight_tokens=9_000 + 500 * number,
            n_run=32,
            token_budget=0,
            kv_committed=0.4,
            tpot_pressure=0.5,
            capacity_n_run=256,
            queued_for=QUEUED / INSTANCES,
            engine=EngineSnapshot(
                engine=f"engine-{number}",
                taken_s=now_s,
                healthy=True,
                running=20 + number,
                waiting=number,
                kv_usage=0.4,
                prompt_tokens_total=int(1000 * now_s) % 1_000_000_000,
            ),
        )
        for number in range(INSTANCES)
    ]
    return SystemSnapshot(
        sent_s=now_s,
        gateway="bench",
        policy="edf",
        queued=QUEUED,
        queued_tokens=4_000,
        queued_long=3,
        overdue=0,
        oldest_wait_ms=400.0,
        arrived_total=0,
        dispatched_total=0,
        ended={},
        instances=views,
    )


def completion(number: int, notice: RequestNotice, now_s: float) -> Completion:
    """The end of a request, of a plausible length."""
    return Completion(
        request_id=f"warm-{number}",
        sent_s=now_s,
        tenant=notice.tenant,
        model=notice.model,
        outcome=OutcomeKind.COMPLETED,
        arrival_s=now_s - 9.0,
        policy="edf",
        instance=f"engine-{number % INSTANCES}",
        prompt_tokens=notice.prompt_tokens,
        output_tokens=80 + 37 * (number % 20),
        queue_ms=300.0,
        ttft_ms=700.0,
        service_ttft_ms=400.0 + number % 50,
        tpot_ms=30.0 + number % 7,
        total_ms=9_000.0,
        running=20,
    )


def quantiles(values_ms: Sequence[float]) -> dict[str, float]:
    array = np.array(values_ms)
    return {"mean": round(float(array.mean()), 4), **{f"p{q}": round(float(np.percentile(array, q)), 4) for q in (50, 90, 98, 99)}}


class Agents:
    """Perception and prediction as processes of their own, with the bus between them."""

    def __init__(self, folder: Path, reader: str) -> None:
        self._folder = folder
        self._server = EmbeddedServer(folder / "bus")
        self._reader = reader
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def __enter__(self) -> Self:
        self.url = self._server.start()
        config = self._folder / "hmas.json"
        document = {"state_dir": str(self._folder), "bus": {"url": self.url}, "agents": {"perception_reader": self._reader}}
        path = config.with_suffix(".yaml")
        path.write_text(json.dumps(document))
        for name in ("perception", "prediction"):
            log = (self._folder / f"{name}.log").open("wb")
            self._children[name] = subprocess.Popen(
                [sys.executable, "-m", "agents", name, "--config", str(path)], stdout=log, stderr=log, env=os.environ
            )
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.send_signal(signal.SIGTERM)
        for child in self._children.values():
            child.wait(10.0)
        self._server.stop()

    def usage(self) -> dict[str, dict[str, float]]:
        """Resident and proportional memory in MiB, and CPU seconds so far, by process."""
        found = {}
        for name, child in self._children.items():
            if child.poll() is not None:
                raise SystemExit(f"agent {name} ended with status {child.returncode}; see {self._folder / name}.log")
            status = dict(line.split(":", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if ":" in line)
            stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = {
                "rss_mib": round(int(status["VmRSS"].split()[0]) / 1024, 1),
                "peak_mib": round(int(status["VmHWM"].split()[0]) / 1024, 1),
                "threads": float(status["Threads"]),
                "cpu_s": (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
            }
        return found


async def over_the_bus(reader: str, notices: Sequence[RequestNotice], rate: float, seed: int) -> dict[str, Any]:
    """Posts notices and snapshots like a gateway and reads costs like one."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="hmas-bench-") as folder, Agents(Path(folder), reader) as agents:
        bus = RedisBus(agents.url)
        await bus.start()
        posted: dict[str, float] = {}
        features_ms: list[float] = []
        costs_ms: list[float] = []
        ready = asyncio.Event()

        async def listen() -> None:
            async for deliveries in bus.follow([FEATURES, COSTS]):
                now_s = clock.now_s()
                for delivery in deliveries:
                    request_id = getattr(delivery.message, "request_id", "")
                    if request_id == "probe":
                        if isinstance(delivery.message, RequestCost):
                            ready.set()
                    elif request_id in posted:
                        kept = costs_ms if isinstance(delivery.message, RequestCost) else features_ms
                        kept.append((now_s - posted[request_id]) * 1000.0)

        async def tell() -> None:
            while True:
                bus.post(snapshot(clock.now_s()))
                await asyncio.sleep(CYCLE_S)

        tasks = [asyncio.create_task(listen()), asyncio.create_task(tell())]
        started_s = clock.now_s()
        while not ready.is_set():
            if clock.now_s() - started_s > READY_S:
                raise SystemExit(f"the agents have not answered within {READY_S:g} s; logs in {folder}")
            agents.usage()
            bus.post(msgspec.structs.replace(notices[0], request_id="probe", sent_s=clock.now_s()))
            await asyncio.sleep(0.2)
        for number, notice in enumerate(notices[:LEARNT]):
            bus.post(completion(number, notice, clock.now_s()))
        await asyncio.sleep(1.0)
        before = agents.usage()
        gaps = np.random.default_rng(seed).exponential(1.0 / rate, len(notices)).tolist()
        due_s = clock.now_s()
        for number, (gap, notice) in enumerate(zip(gaps, notices, strict=True)):
            due_s += gap
            await asyncio.sleep(max(0.0, due_s - clock.now_s()))
            request_id = f"bench-{number}"
            posted[request_id] = clock.now_s()
            bus.post(msgspec.structs.replace(notice, request_id=request_id, sent_s=posted[request_id]))
        took_s = clock.now_s() - started_s
        for _ in range(50):
            if len(costs_ms) >= len(notices):
                break
            await asyncio.sleep(0.1)
        after = agents.usage()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await bus.close()
    spent = {name: (after[name]["cpu_s"] - before[name]["cpu_s"]) * 1000.0 / len(notices) for name in after}
    return {
        "requests": len(notices),
        "answered": len(costs_ms),
        "rate_rps": rate,
        "seconds": round(took_s, 1),
        "notice_to_features_ms": quantiles(features_ms),
        "notice_to_cost_ms": quantiles(costs_ms),
        "cpu_ms_per_request": {name: round(value, 4) for name, value in spent.items()},
        "processes": {name: {key: value for key, value in one.items() if key != "cpu_s"} for name, one in after.items()},
    }
