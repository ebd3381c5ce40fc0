"""How long the event loop is held at a time while 100,000 queued requests change their policy, with traffic going on.

python lab/benchmarks/switch_stall.py            # a tour through all policies; adds `switch_stall` to build/bench/scheduler.json
python lab/benchmarks/switch_stall.py --all      # every ordered pair

The queue stands on a uvloop, with the gateway's own chores and its handling of garbage collection. A turn of the loop is timed from one
to the next, by the clock and by the CPU time of this process: what other processes took of the machine is in the first alone. Each turn
has its part of the traffic: an arrival, two re-keys, an ending and a dispatch every millisecond.
"""

import argparse
import asyncio
import gc
import json
import random
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import uvloop
from bench_scheduler import believed, make_scheduler, request

from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.requests.sliced_work import SlicedWork
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.process import Collector
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.controller.scheduling.scheduler import Scheduler

SIZE = 100_000
GOAL_MS = 5.0
TRAFFIC_EVERY_S = 0.001


class Turns:
    """Times every turn of the loop."""

    def __init__(self) -> None:
        self.wall_ms: list[float] = []
        self.cpu_ms: list[float] = []
        self._wall_s = self._cpu_s = 0.0
        self._on = False

    def start(self) -> None:
        self.wall_ms.clear()
        self.cpu_ms.clear()
        self._on = True
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> dict[str, float]:
        self._on = False
        return {
            "turns": len(self.cpu_ms),
            "cpu_ms_p99": round(sorted(self.cpu_ms)[int(0.99 * len(self.cpu_ms))], 3),
            "cpu_ms_p100": round(max(self.cpu_ms), 3),
            "wall_ms_p100": round(max(self.wall_ms), 3),
        }

    def _turn(self) -> None:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        self.wall_ms.append(1e3 * (wall_s - self._wall_s))
        self.cpu_ms.append(1e3 * (cpu_s - self._cpu_s))
        self._wall_s, self._cpu_s = wall_s, cpu_s
        if self._on:
            asyncio.get_running_loop().call_soon(self._turn)


class Traffic:
    """Arrivals, re-keys, endings and dispatches, as many in as out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._rng = random.Random(7)
        self._coming = 10 * SIZE
        self._waiting = deque(scheduler.queued_ids())
        self._running = deque(scheduler.running_ids())

    def step(self) -> None:
        scheduler, rng, now_s = self._scheduler, self._rng, 1.7e9
        self._coming += 1
        one = request(self._coming, rng)
        scheduler.submit(one, believed(rng), now_s)
        self._waiting.append(one.id)
        scheduler.revise(one.id, believed(rng), now_s)
        scheduler.revise(self._waiting[0], believed(rng), now_s)
        self._waiting.rotate(-1)
        if self._running:
            scheduler.end(self._running.popleft(), OutcomeKind.COMPLETED, now_s, 20)
        self._running += [sent.entry.request.id for sent in scheduler.dispatch(now_s)]


def tour() -> list[str]:
    """Every policy once as the next one, by name, and back to arrival order."""
    return ["fcfs", *(name for name in sorted(POLICIES) if name != "fcfs"), "fcfs"]


def pairs() -> list[str]:
    """A walk over every ordered pair, with steps in between to get to a pair's first."""
    walk = ["fcfs"]
    for before, after in permutations(POLICIES, 2):
        walk += [after] if walk[-1] == before else [before, after]
    return [name for place, name in enumerate(walk) if not place or walk[place - 1] != name]


async def measure(route: Sequence[str], size: int) -> dict[str, Any]:
    """Switches along the route. The clock stands still for the scheduler, so that nothing becomes overdue meanwhile."""
    scheduler = make_scheduler(route[0], size)
    collector = Collector(0.0)
    clock, turns, traffic = SystemClock(), Turns(), Traffic(scheduler)
    sliced_work = SlicedWork(scheduler, _Still(), ends=lambda: False, pump=lambda: None)
    sliced_work.on_slice = collector.age
    found: dict[str, Any] = {}
    for before, after in pairwise(route):
        started_s = clock.now_s()
        turns.start()
        scheduler.set_policy(after, 1.7e9)
        in_force_s = 0.0 if scheduler.policy == after else None
        sliced_work.ask()
        while not scheduler.settled:
            traffic.step()
            await asyncio.sleep(TRAFFIC_EVERY_S)
            if in_force_s is None and scheduler.policy == after:
                in_force_s = clock.now_s() - started_s
        found[f"{before} -> {after}"] = {
            **turns.stop(),
            "in_force_s": round(in_force_s or 0.0, 3),
            "settled_s": round(clock.now_s() - started_s, 3),
        }
        scheduler.check_conservation()
        if len(set(scheduler.queued_ids())) != scheduler.queued:
            raise SystemExit("a request is in the queue twice")
    return found


class _Still:
    """Time as the filled queue knows it."""

    def now_s(self) -> float:
        return 1.7e9


def report(*, size: int = SIZE, every_pair: bool = False) -> dict[str, Any]:
    """The table for build/bench/scheduler.json."""
    thresholds = gc.get_threshold()
    try:
        found = uvloop.run(measure(pairs() if every_pair else tour(), size))
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
    return {
        "queued": size,
        "goal_ms": GOAL_MS,
        "cpu_ms_p100": max(row["cpu_ms_p100"] for row in found.values()),
        "wall_ms_p100": max(row["wall_ms_p100"] for row in found.values()),
        "switches": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--all", action="store_true", help="every ordered pair")
    parser.add_argument("--out", type=Path, default=Path("build/bench/scheduler.json"))
    options = parser.parse_args()
    table = report(size=options.size, every_pair=options.all)
    for pair, row in table["switches"].items():
        held = f"held {row['cpu_ms_p100']:6.2f} ms CPU (p99 {row['cpu_ms_p99']:.2f}), {row['wall_ms_p100']:6.2f} ms wall"
        print(f"{pair:24} {held}; in force after {row['in_force_s']:.2f} s")
    print(f"worst of all: {table['cpu_ms_p100']} ms CPU, {table['wall_ms_p100']} ms wall (goal {GOAL_MS:g} ms)")
    document = json.loads(options.out.read_text()) if options.out.exists() else {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**document, "switch_stall": table}, indent=1))


if __name__ == "__main__":
    main()
