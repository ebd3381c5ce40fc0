"""What the scheduler costs: a push and a pop and a re-key under every policy, a whole request, and the stall of a policy switch.

python lab/benchmarks/bench_scheduler.py            # prints, and writes build/bench/scheduler.json
python lab/benchmarks/bench_scheduler.py --quick    # push, pop and re-key alone

Each figure is CPU time and the smallest of three runs: what the code costs and not what else the machine did; beside it stands its ratio to
fcfs, which is the same work without an order. The collector stands as it does in a serving gateway: what is queued is frozen. Pure
Python, uncompiled.
"""

import argparse
import gc
import json
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.runtime.process import Collector
from hmas.controller.scheduling.policies.registry import POLICIES, make_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings

SIZES = (1_000, 10_000, 100_000)
GOAL_SIZE = 100_000
GOAL_US = 10.0
TENANTS = 16
MANY_TENANTS = 1_000
STEPS = 5_000
RUNS = 3


def believed(rng: random.Random) -> Estimates:
    slo = Slo(ttft_ms=rng.uniform(2000, 12_000), tpot_ms=rng.uniform(50, 150))
    return Estimates(slo=slo, output_tokens=rng.lognormvariate(4.8, 1.0), ttft_ms=rng.uniform(50, 800), tpot_ms=30.0)


def request(number: int, rng: random.Random, tenants: int = TENANTS) -> Request:
    return Request(
        id=f"{number:08d}",
        tenant=f"t{number % tenants}",
        model="m",
        arrival_s=1.7e9 + number * 1e-3,
        prompt_tokens=rng.randrange(50, 4000),
    )


def entries(count: int, tenants: int) -> list[QueueEntry]:
    rng = random.Random(1)
    return [QueueEntry(request=request(i, rng, tenants), estimates=believed(rng), seq=i) for i in range(count)]


def best_of(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Smallest of three runs of each figure."""
    runs = []
    for _ in range(RUNS):
        gc.collect()
        runs.append(work())
    return {name: min(run[name] for run in runs) for name in runs[0]}


def policy_us(name: str, size: int, tenants: int = TENANTS) -> dict[str, float]:
    """Microseconds per push+pop and per re-key of one among `size` that wait."""
    waiting = entries(size + STEPS, tenants)
    rng = random.Random(2)
    picked = [rng.randrange(size) for _ in range(STEPS)]
    fresh = [believed(rng) for _ in range(STEPS)]

    def work() -> dict[str, float]:
        policy = make_policy(name)
        policy.load(waiting[:size], 0.0)
        gc.freeze()
        start = time.process_time()
        for place, estimates in zip(picked, fresh, strict=True):
            entry = waiting[place]
            entry.estimates = estimates
            policy.rekey(entry, 0.0)
        rekeyed = time.process_time()
        for entry in waiting[size:]:
            policy.push(entry, 0.0)
            policy.pop(0.0)
        popped = time.process_time()
        gc.unfreeze()
        return {"push_pop_us": 1e6 * (popped - rekeyed) / STEPS, "rekey_us": 1e6 * (rekeyed - start) / STEPS}

    return best_of(work)


def make_scheduler(policy: str, size: int) -> Scheduler:
    scheduler = Scheduler(
        settings=SchedulerSettings(queue_limit=size + STEPS + 1, overdue="demote", late_service_share=1.0, tpot_guard=0.5),
        instances=[InstanceSpec(name=f"i{i}", capacity_n_run=64, kv_capacity_tokens=10**9) for i in range(4)],
        router=make_router("least-loaded"),
        policy=policy,
    )
    for i in range(4):
        scheduler.set_controls(f"i{i}", Controls(n_run=16))
    rng = random.Random(1)
    for i in range(size):
        scheduler.submit(request(i, rng), believed(rng), 1.7e9)
    scheduler.dispatch(1.7e9)
    return scheduler


def request_us(policy: str, size: int) -> dict[str, float]:
    """One request's whole way: submit, re-key by an agent, dispatch of the next, 16 tokens, end."""

    def work() -> dict[str, float]:
        scheduler = make_scheduler(policy, size)
        running = deque(scheduler.running_ids())
        rng = random.Random(3)
        coming = [(request(size + i, rng), believed(rng), believed(rng)) for i in range(STEPS)]
        start = time.process_time()
        for i, (one, first, second) in enumerate(coming):
            now_s = 1.7e9 + i * 1e-4
            scheduler.submit(one, first, now_s)
            scheduler.revise(one.id, second, now_s)
            if running:
                ended = running.popleft()
                for tokens in range(1, 17):
                    scheduler.progress(ended, tokens, now_s)
                scheduler.end(ended, OutcomeKind.COMPLETED, now_s)
            running += [sent.entry.request.id for sent in scheduler.dispatch(now_s)]
        took_s = time.process_time() - start
        scheduler.check_conservation()
        return {"request_us": 1e6 * took_s / STEPS}

    return best_of(work)


def full_dispatch_us(size: int) -> dict[str, float]:
    """A dispatch with every window full."""

    def work() -> dict[str, float]:
        scheduler = make_scheduler("edf", size)
        scheduler.set_tpot_guard(0.0)
        scheduler.dispatch(1.7e9)
        start = time.process_time()
        for _ in range(STEPS):
            scheduler.dispatch(1.7e9)
        return {"dispatch_full_us": 1e6 * (time.process_time() - start) / STEPS}

    return best_of(work)


def switch_ms(size: int) -> dict[str, float]:
    """Milliseconds of CPU of a switch to each policy with the first dispatch under it: for so long the event loop stands still."""
    scheduler = make_scheduler("fcfs", size)
    tour = [*(name for name in POLICIES if name != "fcfs"), "fcfs"]
    thresholds = gc.get_threshold()
    collector = Collector(0.0)
    found: dict[str, list[float]] = {name: [] for name in tour}
    for name in tour * RUNS:
        collector.look(1e9, quiet=True)
        scheduler.end(scheduler.running_ids()[0], OutcomeKind.COMPLETED, 1.7e9, 20)
        start = time.process_time()
        scheduler.set_policy(name, 1.7e9)
        scheduler.dispatch(1.7e9)
        found[name].append(1e3 * (time.process_time() - start))
        scheduler.check_conservation()
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    return {name: round(min(runs), 1) for name, runs in found.items()}


def policies_table(names: Sequence[str]) -> dict[str, Any]:
    """Push+pop and re-key of every policy at every size, and with many tenants at the largest; the goal and the ratio to fcfs beside it."""
    columns = [*((size, TENANTS) for size in SIZES), (GOAL_SIZE, MANY_TENANTS)]
    rows: dict[str, Any] = {}
    print(
        f"{'push+pop, us':12}"
        + "".join(f"{f'{size}/{tenants}':>13}" for size, tenants in columns)
        + "   of fcfs   goal   re-key   (waiting/tenants)"
    )
    for name in names:
        found = [policy_us(name, size, tenants) for size, tenants in columns]
        worst = max(found[-2]["push_pop_us"], found[-1]["push_pop_us"])
        base = worst if name == "fcfs" else rows["fcfs"]["worst_at_goal_size"]
        rows[name] = {
            "push_pop_us": {f"{size}/{tenants}": round(one["push_pop_us"], 2) for (size, tenants), one in zip(columns, found, strict=True)},
            "rekey_us": {f"{size}/{tenants}": round(one["rekey_us"], 2) for (size, tenants), one in zip(columns, found, strict=True)},
            "worst_at_goal_size": round(worst, 2),
            "of_fcfs": round(worst / base, 2),
            "goal_us": GOAL_US,
            "meets_goal": worst <= GOAL_US,
        }
        figures = "".join(f"{one['push_pop_us']:13.2f}" for one in found)
        verdict = "met" if worst <= GOAL_US else "MISSED"
        print(f"{name:12}{figures}{rows[name]['of_fcfs']:10.2f}{verdict:>7}{found[-2]['rekey_us']:9.2f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench/scheduler.json"))
    parser.add_argument("--quick", action="store_true", help="push, pop and re-key alone")
    options = parser.parse_args()
    names = ["fcfs", *(name for name in POLICIES if name != "fcfs")]
    report: dict[str, Any] = {"goal": {"push_pop_us": GOAL_US, "queued": GOAL_SIZE}, "policies": policies_table(names)}
    if not options.quick:
        report["request_us"] = {}
        print("a whole request, us" + "".join(f"{size:>10}" for size in SIZES[:2]))
        for name in names:
            row = report["request_us"][name] = {str(size): round(request_us(name, size)["request_us"], 2) for size in SIZES[:2]}
            print(f"{name:19}" + "".join(f"{value:10.2f}" for value in row.values()), flush=True)
        report["dispatch_full_us"] = {str(size): round(full_dispatch_us(size)["dispatch_full_us"], 2) for size in SIZES}
        print(f"dispatch with every window full, us: {report['dispatch_full_us']}", flush=True)
        report["switch_ms"] = {str(size): switch_ms(size) for size in SIZES[1:]}
        for size, row in report["switch_ms"].items():
            print(f"stall of a switch with {size} waiting, ms: {row}; the longest {max(row.values())}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1))
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
