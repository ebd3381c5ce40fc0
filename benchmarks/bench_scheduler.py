"""What the queue costs: microseconds per push and pop by policy and depth, and how long a switch of policy takes.

python benchmarks/bench_scheduler.py        # writes build/bench/scheduler.json
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from controller.core.types import Estimates, Request, Slo
from controller.scheduling.pool import POLICIES, make_policy, rebuild
from controller.scheduling.queue_entry import QueueEntry, QueuePolicy

DEPTHS = (1_000, 10_000, 100_000)
PAIRS = 5_000
REPEATS = 3
OUT = Path("build/bench/scheduler.json")


def entries(count: int, seed: int = 1) -> list[QueueEntry]:
    """Waiting requests with lengths, targets and tenants of all kinds."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(10, 4000, count)
    outputs = rng.lognormal(4.5, 0.9, count)
    ttft = rng.choice([2000.0, 4000.0, 10_000.0], count)
    return [
        QueueEntry(
            request=Request(id=f"{i:08d}", tenant=f"t{i % 20}", model="m", arrival_s=1000.0 + i * 0.001, prompt_tokens=int(prompts[i])),
            estimates=Estimates(slo=Slo(ttft_ms=float(ttft[i]), tpot_ms=60.0), output_tokens=float(outputs[i])),
            seq=i,
        )
        for i in range(count)
    ]


def filled(name: str, items: list[QueueEntry]) -> QueuePolicy:
    """A policy that holds all of them."""
    policy = make_policy(name)
    policy.load(items, 1000.0)
    return policy


def timed_s(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def pair_us(name: str, items: list[QueueEntry]) -> float:
    """Microseconds for one pop and one push at constant depth."""

    def once() -> float:
        policy = filled(name, items)

        def work() -> None:
            for _ in range(PAIRS):
                entry = policy.pop(2000.0)
                assert entry is not None
                policy.push(entry, 2000.0)

        return 1e6 * timed_s(work) / PAIRS

    return median(once() for _ in range(REPEATS))


def main() -> None:
    """Measures and writes."""
    report: dict[str, dict[str, object]] = {"push_pop_us": {}, "switch_ms_at_100000": {}}
    pools = {depth: entries(depth) for depth in DEPTHS}
    print(f"{'policy':<10}" + "".join(f"{depth:>12,}" for depth in DEPTHS) + "   microseconds per push and pop")
    for name in POLICIES:
        row = {str(depth): round(pair_us(name, items), 2) for depth, items in pools.items()}
        report["push_pop_us"][name] = row
        print(f"{name:<10}" + "".join(f"{value:>12.2f}" for value in row.values()))
    print("switch at 100,000 waiting, milliseconds (the loop stands still meanwhile)")
    for name in POLICIES:
        old = filled("fcfs" if name != "fcfs" else "edf", pools[100_000])
        stall_ms = 1000.0 * median(timed_s(lambda old=old, name=name: rebuild(old, make_policy(name), 2000.0)) for _ in range(REPEATS))
        report["switch_ms_at_100000"][name] = round(stall_ms, 1)
        print(f"{name:<10}{stall_ms:>12.1f}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
