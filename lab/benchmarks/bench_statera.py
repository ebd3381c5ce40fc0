"""What a cycle of statera costs, by the number of instances.

    python lab/benchmarks/bench_statera.py        # prints, and writes build/bench/statera.json

A cycle is one short view taken in and answered: completions that came with it learnt, and for every instance the trace, the fitted plant,
the best window, both loops, the length bounds and, where due, the action. Every instance is busy, warm (its plant is fitted on the 256
requests it keeps, or on 64 where there are a thousand) and completes 5 requests a second; a view comes each 0.1 s. Pure Python,
uncompiled, CPU time of one thread: what the code costs and not what else the machine did. The goal is 1 ms for each instance and cycle.
"""

import argparse
import gc
import json
import time
from pathlib import Path

import numpy as np

from hmas.agents.statera.model import StateraModel
from hmas.controller.core.messages import Completion, InstanceView, LatencySummary, ShortView
from hmas.controller.core.types import OutcomeKind

SIZES = (1, 100, 1000)
CYCLES = {1: 3000, 100: 200, 1000: 40}
WARM = {1: 256, 100: 256, 1000: 64}
VIEW_S = 0.1
RPS = 5.0
N_RUN = 48
QUEUED = 50
GOAL_MS = 1.0
TARGETS_MS = (25.0, 40.0, 60.0)
LATENCIES = LatencySummary(count=100, p50=100.0, p95=200.0, p99=300.0)


class Bench:
    """A fleet in a steady state."""

    def __init__(self, size: int) -> None:
        self.model = StateraModel()
        self.rng = np.random.default_rng(1)
        self.names = [f"instance-{number}" for number in range(size)]
        self.now_s = 1000.0
        self.number = 0

    def completion(self, name: str) -> Completion:
        """One that has just ended."""
        self.number += 1
        tokens = int(self.rng.integers(50, 200))
        tpot_ms = float((12.0 + 0.3 * N_RUN) * np.exp(0.1 * self.rng.standard_normal()))
        total_ms = 150.0 + tpot_ms * (tokens - 1)
        return Completion(
            request_id=str(self.number),
            sent_s=self.now_s,
            tenant="a",
            model="m",
            outcome=OutcomeKind.COMPLETED,
            arrival_s=self.now_s - total_ms / 1000.0,
            policy="edf",
            instance=name,
            prompt_tokens=int(self.rng.integers(20, 4000)),
            output_tokens=tokens,
            queue_ms=0.0,
            ttft_ms=150.0,
            tpot_ms=tpot_ms,
            total_ms=total_ms,
            tpot_slo_ms=float(self.rng.choice(TARGETS_MS)),
            predicted_output_tokens=100.0,
        )

    def view(self, ended: list[Completion]) -> ShortView:
        """The fast view at this moment."""
        pressures = (0.7 + 0.4 * self.rng.random(len(self.names))).tolist()
        instances = [
            InstanceView(
                name=name,
                in_flight=N_RUN,
                in_flight_tokens=20_000,
                n_run=N_RUN,
                token_budget=2048,
                kv_committed=0.4,
                tpot_pressure=pressure,
                capacity_n_run=256,
                max_token_budget=2048,
                queued_for=QUEUED / len(self.names),
            )
            for name, pressure in zip(self.names, pressures, strict=True)
        ]
        return ShortView(
            sent_s=self.now_s,
            window_s=5.0,
            policy="edf",
            queued=QUEUED,
            oldest_wait_ms=500.0,
            queue_slope=0.0,
            ended=100,
            ttft_ms=LATENCIES,
            tpot_ms=LATENCIES,
            violation_rate=0.05,
            ttft_violation_rate=0.02,
            tpot_violation_rate=0.03,
            goodput_rps=RPS,
            throughput_tps=1000.0,
            utilization=dict(zip(self.names, pressures, strict=True)),
            instances=instances,
            recent=ended,
        )

    def warm(self, each: int) -> None:
        """Fills the plants and the windows of errors."""
        for _ in range(150):
            self.model.observe(self.view([]), self.now_s)
            self.now_s += VIEW_S
        for _ in range(each):
            self.model.observe(self.view([self.completion(name) for name in self.names]), self.now_s)
            self.now_s += VIEW_S

    def cycle_ms(self) -> float:
        """One cycle, timed; what makes the view is not."""
        count = self.rng.poisson(RPS * VIEW_S * len(self.names))
        view = self.view([self.completion(self.names[int(at)]) for at in self.rng.integers(0, len(self.names), count)])
        begun = time.thread_time()
        self.model.observe(view, self.now_s)
        took_ms = 1000.0 * (time.thread_time() - begun)
        self.now_s += VIEW_S
        return took_ms


def measure(size: int) -> dict[str, float]:
    """Median and p99 of a cycle, whole and for each instance, milliseconds."""
    bench = Bench(size)
    bench.warm(WARM[size])
    gc.collect()
    gc.freeze()
    took = np.array([bench.cycle_ms() for _ in range(CYCLES[size])])
    gc.unfreeze()
    median, p99 = float(np.median(took)), float(np.quantile(took, 0.99))
    return {"instances": size, "median_ms": median, "p99_ms": p99, "per_instance_ms": median / size, "per_instance_p99_ms": p99 / size}


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of instances, among 1, 100, 1000")
    parser.add_argument("--out", type=Path, default=Path("build/bench/statera.json"))
    options = parser.parse_args()
    rows = [measure(int(size)) for size in options.sizes.split(",")]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"goal_ms": GOAL_MS, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"{'instances':>9} {'cycle, ms':>10} {'p99':>8} {'each, ms':>9} {'p99':>7}  goal {GOAL_MS:g} ms each")
    for row in rows:
        verdict = "met" if row["per_instance_p99_ms"] <= GOAL_MS else "missed"
        print(
            f"{row['instances']:9.0f} {row['median_ms']:10.3f} {row['p99_ms']:8.3f} "
            f"{row['per_instance_ms']:9.3f} {row['per_instance_p99_ms']:7.3f}  {verdict}"
        )


if __name__ == "__main__":
    main()
