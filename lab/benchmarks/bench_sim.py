"""How fast the simulator is, how much memory it takes, and how it compares with what was measured: writes build/bench/sim.json.

    python lab/benchmarks/bench_sim.py                 # everything; `make bench-sim` runs it on the compiled form
    python lab/benchmarks/bench_sim.py --only speed    # or fidelity

Where HMAS_DATA_DIR is not set, arrivals are drawn instead of replayed, and what needs measured data is left out.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

from hmas.controller.core.types import Controls
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import SimulationResult, simulate
from hmas.engines.sim import model as engine_model
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas.workloads import Workload, build

PROFILE = "a100-qwen3-8b"
INSTANCES = 8
RATE_RPS = 40
REPLAY_S = 600
WINDOW_S = 120
N_RUN = 64
RUNS = 3
SCALES = (10_000, 100_000, 1_000_000)
Overdue = Literal["keep", "demote", "shed"]
CANDIDATES: list[tuple[str, Overdue]] = [(name, "demote") for name in list(POLICIES)[:12]]
"""Twelve policies of the pool that a controller would choose from."""


def azure_spec(duration_s: float) -> str:
    """The workload of the speed figures."""
    folder = os.environ.get("HMAS_DATA_DIR")
    path = Path(folder, "arrivals", "azure_llm_2023_conv.csv.gz") if folder else None
    if path is None or not path.is_file():
        return f"poisson:rate={RATE_RPS},duration={duration_s:g},seed=1"
    laps = 2 if duration_s > 300 else 1
    return f"azure:{path}?rate={RATE_RPS},duration={duration_s:g},laps={laps}"


def simulated(workload: Workload, policy: str = "edf", overdue: Overdue = "demote", *, guarded: bool = True) -> SimulationResult:
    """One run with the product's own settings: fence, treatment of late requests, guard; `guarded=False` is plain FCFS with a window."""
    settings = (
        SchedulerSettings(queue_limit=2_000_000, overdue=overdue, late_service_share=0.5, tpot_guard=0.5)
        if guarded
        else SchedulerSettings(queue_limit=2_000_000, overdue="keep", fence=False)
    )
    names = [f"instance-{i + 1}" for i in range(INSTANCES)]
    scheduler = Scheduler(
        settings=settings,
        instances=[InstanceSpec(name=name, capacity_n_run=256) for name in names],
        router=make_router("least-loaded"),
        policy=policy,
    )
    for name in names:
        scheduler.set_controls(name, Controls(n_run=N_RUN))
    profile = load_profile(PROFILE)
    return simulate(workload.arrivals(model="m"), {name: EngineModel(profile) for name in names}, scheduler)


def best_s(work: Callable[[], object]) -> float:
    """The least of three: what the work takes, not what else the machine did."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def one_candidate(spec: str, policy: str, overdue: Overdue) -> float:
    """Share of requests within SLO; a plain function, so that a pool of processes can take it."""
    global _window  # noqa: PLW0603 - what a worker keeps between candidates, as the digital twin's workers would
    if _window is None or _window[0] != spec:
        _window = (spec, build(spec))
    records = simulated(_window[1], policy, overdue).records
    return sum(record.slo_met for record in records) / len(records)


_window: tuple[str, Workload] | None = None


def warm(spec: str) -> None:
    """Makes a worker ready."""
    one_candidate(spec, "fcfs", "keep")


def what_if(spec: str) -> dict[str, Any]:
    """Twelve candidates over a window, on two cores."""
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(warm, [spec] * 4))

        def ask() -> list[float]:
            return list(pool.map(one_candidate, [spec] * 12, *zip(*CANDIDATES, strict=True)))

        seconds = best_s(ask)
        shares = ask()
    ranked = sorted(zip(shares, CANDIDATES, strict=True), reverse=True)
    return {"seconds": round(seconds, 3), "candidates": {f"{order}, {late}": round(share, 4) for share, (order, late) in ranked}}


def at_scale(requests: int) -> dict[str, float]:
    """Cost and peak memory of a long run, in a process of its own."""
    command = [sys.executable, __file__, "--scale", str(requests)]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return figures


def measure_scale(requests: int) -> dict[str, float]:
    """The child's part of `at_scale`."""
    workload = build(f"poisson:rate={RATE_RPS},count={requests},seed=1")
    start = time.process_time()
    result = simulated(workload)
    took_s = time.process_time() - start
    assert len(result.records) == requests
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"requests": requests, "us_per_request": round(1e6 * took_s / requests, 1), "peak_mb": round(peak_mb)}


def speed() -> dict[str, Any]:
    """Everything about time and memory."""
    replay, window = build(azure_spec(REPLAY_S)), azure_spec(WINDOW_S)
    report: dict[str, Any] = {
        "compiled": not engine_model.__file__.endswith(".py"),
        "workload": azure_spec(REPLAY_S).rsplit("/", 1)[-1],
        "requests": len(replay),
        "instances": INSTANCES,
        "replay_s": round(best_s(lambda: simulated(replay)), 3),
        "replay_plain_fcfs_s": round(best_s(lambda: simulated(replay, "fcfs", guarded=False)), 3),
    }
    print(f"{report['requests']} requests over {INSTANCES} instances: {report['replay_s']} s; plain FCFS {report['replay_plain_fcfs_s']} s")
    report["what_if"] = what_if(window)
    print(f"12 candidates over {WINDOW_S} s on 2 cores: {report['what_if']['seconds']} s")
    report["scale"] = []
    for requests in SCALES:
        row = at_scale(requests)
        report["scale"].append(row)
        print(f"{requests:>9,} requests: {row['us_per_request']} us each, peak {row['peak_mb']} MB", flush=True)
    return report


def fidelity() -> dict[str, Any] | None:
    """Predicted against measured, where the data is there."""
    folder = os.environ.get("HMAS_DATA_DIR")
    if not folder:
        return None
    from hmas_lab.fidelity import report  # noqa: PLC0415 - scipy takes a second, and speed has no use for it

    return report(Path(folder), plots=Path("build/bench/fidelity"))


def main() -> None:
    """Measures and writes."""
    parts: dict[str, Callable[[], dict[str, Any] | None]] = {"speed": speed, "fidelity": fidelity}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=parts, help="one part; the others keep their last figures")
    parser.add_argument("--scale", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("build/bench/sim.json"))
    options = parser.parse_args()
    if options.scale:
        print(json.dumps(measure_scale(options.scale)))
        return
    report = json.loads(options.out.read_text(encoding="utf-8")) if options.only and options.out.is_file() else {}
    for name in [options.only] if options.only else parts:
        report[name] = parts[name]()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
