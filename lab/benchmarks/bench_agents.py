"""What the two agents that read requests cost: time and memory of perception and prediction, in one process and as the real ones.

HMAS_DATA_DIR=... python lab/benchmarks/bench_agents.py      # prints, and writes build/bench/agents.json

`in process`: the models themselves at 50 requests/s with Poisson gaps, real prompts, four instances to predict for; a request's time is
that of reading it and costing it, as wall time and as CPU time. Where the machine has other work, only the CPU time says what the code
costs. `back to back`: the same requests one by one without a pause, so that what a pause costs (caches and page tables gone cold) can be
told from what the code costs. `batches`: the same prompts a hundred at a time. `over the bus`: the two agents as processes of their own
behind a real server; the time from posting a notice to reading its cost, which three gatherings of the bus and two wake-ups are part of.
The paper (H-MAS E.4) gives 1.64 ms a request for both, 4 ms at the 98th percentile.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from agents_bus import CYCLE_S, INSTANCES, LEARNT, completion, over_the_bus, quantiles, snapshot
from hmas_lab.agents.asked import Pool, notice_of, read_pool
from hmas_lab.agents.held_out import held_out
from hmas_lab.page import between
from hmas_lab.tables import Table, markdown

from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.lengths.model import LengthModel
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.readers import ReaderSource
from hmas.agents.prediction.model import PredictionModel
from hmas.agents.prediction.regressor import load_regressor
from hmas.cli.output import table as terminal
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.messages import RequestNotice

READERS = ("rules", "shipped")
MODEL = "served"
GOAL_MEAN_MS, GOAL_P98_MS, GOAL_RPS = 0.8, 2.0, 1000.0
PAPER_MEAN_MS, PAPER_P98_MS = 1.64, 4.0
BATCH = 100
WARM_UP = 50


def prompts_of(pool: Pool, count: int, seed: int) -> list[str]:
    """So many prompts of all types, evenly over the pool, in an order that is drawn."""
    texts = [prompt.text for found in pool.prompts.values() for prompt in found]
    order = np.random.default_rng(seed).permutation(len(texts))
    return [texts[order[number % len(texts)]] for number in range(count)]


class InProcess:
    """The two models in this process."""

    def __init__(self, reader: str) -> None:
        settings = AgentsConfig(perception_reader=reader)
        opened = ReaderSource(settings, ModelStore(Path(tempfile.gettempdir()) / "no-models")).open()
        lengths = LengthModel(opened.lengths)
        self.perception = PerceptionModel(min_confidence=settings.perception_min_confidence, reader=opened.reader, lengths=lengths)
        self.prediction = PredictionModel(load_regressor())
        self.name = opened.name

    def warm(self, notices: Sequence[RequestNotice]) -> None:
        """Lets them learn a little, and pays for what only the first call costs."""
        now_s = time.time()
        self.prediction.observe(snapshot(now_s))
        for number, notice in enumerate(notices[:LEARNT]):
            done = completion(number, notice, now_s)
            self.perception.learn(done)
            self.prediction.learn(done)
        for notice in notices[:WARM_UP]:
            self.answer([notice])

    def answer(self, notices: Sequence[RequestNotice]) -> None:
        now_s = time.time()
        costs = self.prediction.predict(self.perception.perceive_all(notices, now_s), now_s)
        assert len(costs) == len(notices), "every request is costed"


def paced(models: InProcess, notices: Sequence[RequestNotice], rate: float, seed: int) -> dict[str, Any]:
    """Poisson arrivals one by one; what has come meanwhile is answered together, as the agent does."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, len(notices))
    due_s = time.perf_counter() + np.cumsum(gaps)
    wall, cpu = [], []
    seen_s = 0.0
    at = 0
    while at < len(notices):
        time.sleep(max(0.0, due_s[at] - time.perf_counter()))
        now_s = time.time()
        if now_s - seen_s >= CYCLE_S:
            models.prediction.observe(snapshot(now_s))
            seen_s = now_s
        end = at + max(1, int(np.searchsorted(due_s[at:], time.perf_counter())))
        began, spent = time.perf_counter(), time.thread_time()
        models.answer(notices[at:end])
        took, cost = (time.perf_counter() - began) * 1000.0, (time.thread_time() - spent) * 1000.0
        wall += [took / (end - at)] * (end - at)
        cpu += [cost / (end - at)] * (end - at)
        at = end
    return {"requests": len(notices), "rate_rps": rate, "wall_ms": quantiles(wall), "cpu_ms": quantiles(cpu)}


def back_to_back(models: InProcess, notices: Sequence[RequestNotice]) -> dict[str, Any]:
    """One request after the other, nothing in between; snapshots come at the same intervals of time as in `paced`."""
    cpu = []
    seen_s = 0.0
    for notice in notices:
        now_s = time.time()
        if now_s - seen_s >= CYCLE_S:
            models.prediction.observe(snapshot(now_s))
            seen_s = now_s
        spent = time.thread_time()
        models.answer([notice])
        cpu.append((time.thread_time() - spent) * 1000.0)
    return {"requests": len(notices), "cpu_ms": quantiles(cpu)}


def batches(models: InProcess, notices: Sequence[RequestNotice]) -> dict[str, float]:
    """One worker with more than it can do: a hundred at a time, the best of three passes."""
    best = float("inf")
    for _ in range(3):
        models.prediction.observe(snapshot(time.time()))
        spent = time.process_time()
        for at in range(0, len(notices), BATCH):
            models.answer(notices[at : at + BATCH])
        best = min(best, time.process_time() - spent)
    return {"batch": BATCH, "requests_per_cpu_s": round(len(notices) / best, 1)}


def measure(reader: str, pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    count = max(WARM_UP, int(options.rate * options.seconds))
    texts = prompts_of(pool, count, seed=1)
    now_s = time.time()
    notices = [notice_of(text, model=MODEL, request_id=f"{n}", tenant=f"t{n % 8}", sent_s=now_s) for n, text in enumerate(texts)]
    models = InProcess(reader)
    models.warm(notices)
    found = {
        "reader": models.name,
        "prompt_chars_mean": round(float(np.mean([notice.prompt_chars for notice in notices])), 1),
        "in_process": paced(models, notices, options.rate, seed=2),
        "back_to_back": back_to_back(models, notices),
        "batches": batches(models, notices),
    }
    return found if options.no_bus else {**found, "over_the_bus": uvloop.run(over_the_bus(reader, notices, options.rate, seed=2))}


ROWS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("CPU ms a request, mean", ("in_process", "cpu_ms", "mean"), f"{GOAL_MEAN_MS:g}", f"{PAPER_MEAN_MS:g}"),
    ("CPU ms a request, p98", ("in_process", "cpu_ms", "p98"), f"{GOAL_P98_MS:g}", f"{PAPER_P98_MS:g}"),
    ("wall ms a request, mean", ("in_process", "wall_ms", "mean"), f"{GOAL_MEAN_MS:g}", f"{PAPER_MEAN_MS:g}"),
    ("wall ms a request, p98", ("in_process", "wall_ms", "p98"), f"{GOAL_P98_MS:g}", f"{PAPER_P98_MS:g}"),
    ("CPU ms a request back to back, mean", ("back_to_back", "cpu_ms", "mean"), "", ""),
    ("CPU ms a request back to back, p98", ("back_to_back", "cpu_ms", "p98"), "", ""),
    ("requests a CPU second, batches of 100", ("batches", "requests_per_cpu_s"), f"{GOAL_RPS:g}", "600"),
    ("notice to cost over the bus, ms, mean", ("over_the_bus", "notice_to_cost_ms", "mean"), "", ""),
    ("notice to cost over the bus, ms, p98", ("over_the_bus", "notice_to_cost_ms", "p98"), "", ""),
    ("perception process: CPU ms a request", ("over_the_bus", "cpu_ms_per_request", "perception"), "", ""),
    ("prediction process: CPU ms a request", ("over_the_bus", "cpu_ms_per_request", "prediction"), "", ""),
    ("perception process: resident MiB", ("over_the_bus", "processes", "perception", "rss_mib"), "", ""),
    ("prediction process: resident MiB", ("over_the_bus", "processes", "prediction", "rss_mib"), "", ""),
)
"""Words, place in a reader's figures, goal and the paper's figure."""


def table_of(document: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows, one column a reader."""
    readers = document["readers"]
    head = ("", *(f"{name}" for name in readers), "goal", "paper")
    rows = [(words, *(_cell(one, path) for one in readers.values()), goal, paper) for words, path, goal, paper in ROWS]
    return head, rows


def _cell(found: dict[str, Any], path: Sequence[str]) -> str:
    value: Any = found
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return f"{value:.3g}" if isinstance(value, float) and value < 100 else "-" if value is None else f"{value:.0f}"


def body(document: dict[str, Any]) -> str:
    """The table for the page."""
    head, rows = table_of(document)
    machine = document["machine"]
    first = next(iter(document["readers"].values()))
    about = (
        f"{first['in_process']['requests']} real prompts of {first['prompt_chars_mean']:.0f} characters on average, at "
        f"{first['in_process']['rate_rps']:g} requests/s with Poisson gaps, {document['instances']} instances to predict for; "
        f"{machine['cpus']} cores with a load of {machine['load']:.1f} when it began. Where other work ran, only CPU time says what the "
        "code costs."
    )
    return "\n\n".join([about, markdown(Table("Perception and prediction together", head, rows))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench/agents.json"))
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each paced part")
    parser.add_argument("--readers", default=",".join(READERS), help="which, with commas between")
    parser.add_argument("--no-bus", action="store_true", help="leave the real processes out")
    parser.add_argument("--page", type=Path, help="write the table into this page, between its markers")
    options = parser.parse_args()
    data = os.environ.get("HMAS_DATA_DIR")
    if not data:
        raise SystemExit("set HMAS_DATA_DIR to the folder of the public data: the prompts that are read here are real ones")
    pool = read_pool(Path(data), held_out(Path(data)))
    load = round(os.getloadavg()[0], 2)
    found = {reader: measure(reader, pool, options) for reader in options.readers.split(",")}
    document: dict[str, Any] = {
        "version": 1,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": load},
        "goals": {"mean_ms": GOAL_MEAN_MS, "p98_ms": GOAL_P98_MS, "requests_per_s": GOAL_RPS},
        "paper": {"mean_ms": PAPER_MEAN_MS, "p98_ms": PAPER_P98_MS},
        "instances": INSTANCES,
        "readers": found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(terminal(*table_of(document)))
    print(f"written to {options.out}")
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(between(text, "cost", body(document), options.page), encoding="utf-8")


if __name__ == "__main__":
    main()
