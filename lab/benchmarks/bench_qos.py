"""What qos costs, and how well it tells changes: microseconds a completion, milliseconds a view, memory, false alarms and delays.

python lab/benchmarks/bench_qos.py      # prints, and writes build/bench/qos.json

One process, no bus: a synthetic stream of completions (lognormal lengths, Pareto waits, eight tenants, all task types) and a snapshot every
0.1 s goes through the model until its long window is full, then for `--seconds` more, which are timed. Only the model's own calls are
timed, by the thread's CPU time. To measure another version beside it, point PYTHONPATH at its tree (`python -P`).
"""

import argparse
import gc
import json
import os
import platform
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from hmas_lab.page import between
from hmas_lab.tables import Table, markdown
from qos_changes import AFTER, FIGURES, QUIET_BLOCKS, SHIFTS, changes
from qos_changes import RATES as REQUEST_RATES

from hmas.agents.qos.model import QosModel
from hmas.controller.core.messages import Completion, InstanceView, SystemSnapshot
from hmas.controller.core.types import OutcomeKind, TaskType
from hmas.engines.base import EngineSnapshot

RATES = (50, 1_000, 10_000)
TICK_S = 0.1
WINDOW_S = 60.0
INSTANCES = 4
TASKS = tuple(TaskType)


class Traffic:
    """A stream of completions and snapshots, the same for the same seed."""

    def __init__(self, rate: float, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._rate = rate
        self.ended = 0

    def tick(self, now_s: float) -> tuple[list[Completion], SystemSnapshot]:
        """What comes in one tick that ends now."""
        rng, number = self._rng, int(self._rng.poisson(self._rate * TICK_S))
        ended_s = now_s - TICK_S * np.sort(rng.random(number))[::-1]
        prompts, outputs = np.exp(rng.normal(6.0, 1.2, number)).astype(int) + 1, np.exp(rng.normal(5.0, 1.0, number)).astype(int) + 1
        waits, prefills, tpots = 50.0 * rng.pareto(1.5, number), 40.0 + 0.1 * prompts, 20.0 + 10.0 * rng.random(number)
        made = []
        for i in range(number):
            self.ended += 1
            ttft_ms = float(waits[i] + prefills[i])
            total_ms = float(ttft_ms + tpots[i] * outputs[i])
            made.append(
                Completion(
                    request_id=f"{self.ended:016x}", sent_s=float(ended_s[i]), tenant=f"tenant-{self.ended % 8}", model="m",
                    outcome=OutcomeKind.COMPLETED, arrival_s=float(ended_s[i] - total_ms / 1000.0), policy="edf",
                    instance=f"engine-{self.ended % INSTANCES}", task_type=TASKS[self.ended % len(TASKS)],
                    prompt_tokens=int(prompts[i]), output_tokens=int(outputs[i]), queue_ms=float(waits[i]), ttft_ms=ttft_ms,
                    service_ttft_ms=float(prefills[i]), tpot_ms=float(tpots[i]), total_ms=total_ms, ttft_slo_ms=1_000.0, tpot_slo_ms=40.0,
                    predicted_output_tokens=150.0, running=20, slo_met=ttft_ms <= 1_000.0, status=200,
                )
            )  # fmt: skip
        return made, self._snapshot(now_s)

    def _snapshot(self, now_s: float) -> SystemSnapshot:
        views = [
            InstanceView(
                name=f"engine-{n}", in_flight=20, in_flight_tokens=9_000, n_run=32, token_budget=0, kv_committed=0.4, tpot_pressure=0.5,
                capacity_n_run=256,
                engine=EngineSnapshot(
                    engine=f"engine-{n}", taken_s=now_s, healthy=True, running=20, kv_usage=0.4, prompt_tokens_total=50 * self.ended,
                    generation_tokens_total=30 * self.ended,
                ),
            )
            for n in range(INSTANCES)
        ]  # fmt: skip
        return SystemSnapshot(
            sent_s=now_s, gateway="bench", policy="edf", queued=12, queued_tokens=4_000, queued_long=3, overdue=0, oldest_wait_ms=400.0,
            arrived_total=self.ended + 92, dispatched_total=self.ended + 80, ended={"completed": self.ended}, instances=views,
        )  # fmt: skip


class Stopwatch:
    """CPU time of the calls between `begin` and `end`."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self._from_s = 0.0

    def begin(self) -> None:
        self._from_s = time.thread_time()

    def end(self) -> None:
        self.times_s.append(time.thread_time() - self._from_s)


def measure(rate: float, seconds: float, seed: int = 1) -> dict[str, Any]:
    """One rate: a window's worth to fill up, then what is timed."""
    traffic = Traffic(rate, seed)
    # A period of its own for each view tells their costs apart: a call that gives none is the cost of a snapshot alone.
    model = QosModel(long_window_s=WINDOW_S)
    watches = {name: Stopwatch() for name in ("completions", "snapshot", "short", "long")}
    completions, sizes = 0, {"short": 0, "long": 0}
    now_s, until_s = 1_000.0, 1_000.0 + WINDOW_S + 5.0 + seconds
    while now_s < until_s:
        made, snapshot = traffic.tick(now_s)
        timed = now_s >= until_s - seconds
        done = watches["completions"]
        done.begin()
        for completion in made:
            model.complete(completion, now_s)
        done.end()
        started = time.thread_time()
        views = model.observe(snapshot, now_s)
        spent = time.thread_time() - started
        if timed:
            completions += len(made)
            kind = "snapshot" if not views else "short" if len(views) == 1 else "long"
            watches[kind].times_s.append(spent)
            for view in views:
                name = "short" if type(view).__name__ == "ShortView" else "long"
                bare = msgspec.structs.replace(view, recent=[]) if name == "short" else view
                sizes[name] = max(sizes[name], len(msgspec.json.encode(bare)))
        else:
            done.times_s.clear()
        now_s = round(now_s + TICK_S, 6)
    bare_ms, short_ms, long_ms = (1000.0 * float(np.median(watches[name].times_s)) for name in ("snapshot", "short", "long"))
    return {
        "completions_per_s": rate,
        "us_per_completion": round(1e6 * sum(watches["completions"].times_s) / max(1, completions), 3),
        "ms_per_short_view": round(short_ms - bare_ms, 4),
        "ms_per_long_view": round(long_ms - short_ms, 4),
        "cpu_share": round(sum(sum(w.times_s) for w in watches.values()) / seconds, 4),
        "bytes_short_view_bare": sizes["short"],
        "bytes_long_view": sizes["long"],
    }


def memory_mib(rate: float) -> float:
    """What the model holds with a full window, by the allocator's own account; completions that only it keeps count as its own."""
    traffic = Traffic(rate, 2)
    gc.collect()
    tracemalloc.start()
    model = QosModel(long_window_s=WINDOW_S)
    now_s = 1_000.0
    while now_s < 1_000.0 + WINDOW_S + 1.0:
        made, snapshot = traffic.tick(now_s)
        for completion in made:
            model.complete(completion, now_s)
        model.observe(snapshot, now_s)
        now_s = round(now_s + TICK_S, 6)
    del made, snapshot
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert model is not None
    return round(held / 2**20, 2)


def body(document: dict[str, Any]) -> str:
    """The tables for the page."""
    costs = Table(
        "Cost by the rate of completions (CPU time of the thread; the share is of one core, with views five times a second)",
        ("completions/s", "µs a completion", "ms a short view", "ms a long view", "share", "MiB", "bytes V_short", "bytes V_long"),
        [
            (
                f"{row['completions_per_s']:.0f}", f"{row['us_per_completion']:.1f}", f"{row['ms_per_short_view']:.2f}",
                f"{row['ms_per_long_view']:.2f}", f"{row['cpu_share']:.2%}", f"{row['memory_mib']:.1f}",
                f"{row['bytes_short_view_bare']}", f"{row['bytes_long_view']}",
            )
            for row in document["rates"]
        ],
    )  # fmt: skip
    found = document["changes"]
    quiet = Table(
        f"Changes called in {QUIET_BLOCKS} blocks ({QUIET_BLOCKS * found['block_s'] / 3600.0:.0f} hours) of a workload that never changes",
        ("requests/s", *FIGURES),
        [(f"{row['rate']:g}", *(str(row["called"][figure]) for figure in FIGURES)) for row in found["quiet"]],
    )
    cells = {(row["change"], row["rate"]): row for row in found["delays"]}
    delays = Table(
        "Seconds from a change to its call, median and 90th percentile of 60 tries, by requests/s (and a second of grace)",
        ("change", *(f"{rate:g}/s" for rate in REQUEST_RATES)),
        [(name, *(_delay(cells[name, rate], found["block_s"]) for rate in REQUEST_RATES)) for _, name, _ in SHIFTS],
    )
    tables = [costs, quiet, delays]
    if found["traces"]:
        rows = [(row["trace"], f"{row['minutes']:.0f}", *(str(row["called"][f]) for f in FIGURES[:3])) for row in found["traces"]]
        tables.append(Table("Changes called on real traces", ("trace", "minutes", *FIGURES[:3]), rows))
    return "\n\n".join(markdown(table) for table in tables)


def _delay(row: dict[str, Any], block_s: float) -> str:
    def words(blocks: int) -> str:
        return f"{blocks * block_s:.0f}" if blocks <= AFTER else f"over {AFTER * block_s:.0f}"

    return f"{words(row['median_blocks'])}, {words(row['p90_blocks'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench/qos.json"))
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="completions a second, with commas between")
    parser.add_argument("--seconds", type=float, default=20.0, help="telemetry's seconds that are timed at each rate")
    parser.add_argument("--page", type=Path, help="write the tables into this page, between its markers")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    rows = []
    for rate in (float(word) for word in options.rates.split(",")):
        row = measure(rate, options.seconds)
        row["memory_mib"] = memory_mib(rate)
        rows.append(row)
        print(json.dumps(row))
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": load}
    document = {"version": 1, "machine": machine, "rates": rows, "changes": changes(os.environ.get("HMAS_DATA_DIR"))}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(body(document))
    print(f"written to {options.out}")
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(between(text, "qos", body(document), options.page), encoding="utf-8")


if __name__ == "__main__":
    main()
