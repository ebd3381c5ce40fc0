"""What the scheduler costs: a push and a pop, a whole request, re-keying, and the stall of a policy switch, by queue length.

python benchmarks/bench_scheduler.py            # prints, and writes build/bench/scheduler.json
"""

import argparse
import gc
import json
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from controller.routing import make_router
from controller.scheduling.outcomes import InstanceSpec, SchedulerSettings
from controller.scheduling.pool import POLICIES, make_policy
from controller.scheduling.queue_entry import QueueEntry
from controller.scheduling.scheduler import Scheduler

SIZES = (1_000, 10_000, 100_000)
STEPS = 5_000
RUNS = 3


def believed(rng: random.Random) -> Estimates:
    slo = Slo(ttft_ms=rng.uniform(2000, 12_000), tpot_ms=rng.uniform(50, 150))
    return Estimates(slo=slo, output_tokens=rng.lognormvariate(4.8, 1.0), ttft_ms=rng.uniform(50, 800), tpot_ms=30.0)


def request(number: int, rng: random.Random) -> Request:
    return Request(
        id=f"{number:08d}", tenant=f"t{number % 16}", model="m", arrival_s=1.7e9 + number * 1e-3, prompt_tokens=rng.randrange(50, 4000)
    )


def entries(count: int) -> list[QueueEntry]:
    rng = random.Random(1)
    return [QueueEntry(request=request(i, rng), estimates=believed(rng), seq=i) for i in range(count)]


def best_of(work: Callable[[], float]) -> float:
    """Smallest of three runs: what the code costs, not what else the machine did."""
    results = []
    for _ in range(RUNS):
        gc.collect()
        results.append(work())
    return min(results)


def push_pop_us(name: str, size: int) -> float:
    waiting = entries(size + STEPS)

    def work() -> float:
        policy = make_policy(name)
        policy.load(waiting[:size], 0.0)
        start = time.perf_counter()
        for entry in waiting[size:]:
            policy.push(entry, 0.0)
            policy.pop(0.0)
        return 1e6 * (time.perf_counter() - start) / STEPS

    return best_of(work)


def rekey_us(name: str, size: int) -> float:
    waiting = entries(size)
    rng = random.Random(2)
    picked = [rng.choice(waiting) for _ in range(STEPS)]
    fresh = [believed(rng) for _ in range(STEPS)]

    def work() -> float:
        policy = make_policy(name)
        policy.load(waiting, 0.0)
        start = time.perf_counter()
        for entry, estimates in zip(picked, fresh, strict=True):
            entry.estimates = estimates
            policy.rekey(entry, 0.0)
        return 1e6 * (time.perf_counter() - start) / STEPS

    return best_of(work)


def make_scheduler(policy: str, size: int) -> Scheduler:
    scheduler = Scheduler(
        settings=SchedulerSettings(queue_limit=size + STEPS + 1, overdue="demote", overdue_service_share=1.0, tpot_guard=0.5),
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


def request_us(policy: str, size: int) -> float:
    """One request's whole way: submit, re-key by an agent, dispatch of the next, 16 tokens, end."""

    def work() -> float:
        scheduler = make_scheduler(policy, size)
        running = deque(scheduler.running_ids())
        rng = random.Random(3)
        coming = [(request(size + i, rng), believed(rng), believed(rng)) for i in range(STEPS)]
        start = time.perf_counter()
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
        took_s = time.perf_counter() - start
        scheduler.check_conservation()
        return 1e6 * took_s / STEPS

    return best_of(work)


def full_dispatch_us(size: int) -> float:
    def work() -> float:
        scheduler = make_scheduler("edf", size)
        scheduler.set_tpot_guard(0.0)
        scheduler.dispatch(1.7e9)
        start = time.perf_counter()
        for _ in range(STEPS):
            scheduler.dispatch(1.7e9)
        return 1e6 * (time.perf_counter() - start) / STEPS

    return best_of(work)


def scheduler_switch_ms(new: str, size: int) -> float:
    def work() -> float:
        scheduler = make_scheduler("fcfs" if new != "fcfs" else "edf", size)
        start = time.perf_counter()
        scheduler.set_policy(new, 1.7e9)
        return 1e3 * (time.perf_counter() - start)

    return best_of(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench/scheduler.json"))
    options = parser.parse_args()
    report: dict[str, dict[str, dict[str, float]]] = {"push_pop_us": {}, "rekey_us": {}, "request_us": {}, "switch_ms": {}}
    print(f"{'':10}" + "".join(f"{size:>10}" for size in SIZES) + "   waiting")
    for measure, table in (
        (push_pop_us, "push_pop_us"),
        (rekey_us, "rekey_us"),
        (request_us, "request_us"),
        (scheduler_switch_ms, "switch_ms"),
    ):
        print(table)
        for name in POLICIES:
            row = report[table][name] = {str(size): round(measure(name, size), 2) for size in SIZES}
            print(f"  {name:8}" + "".join(f"{value:10.2f}" for value in row.values()), flush=True)
    full = {str(size): round(full_dispatch_us(size), 2) for size in SIZES}
    print("dispatch_full_us\n  edf     " + "".join(f"{value:10.2f}" for value in full.values()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**report, "dispatch_full_us": {"edf": full}}, indent=1))
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
