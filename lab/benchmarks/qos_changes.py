"""How often qos calls a change where there is none, and how soon it calls one that is there: the other half of `bench_qos.py`.

Blocks of synthetic workload go through the watch itself: Poisson arrivals, lognormal prompts (sigma 1.2), Pareto outputs (index 1.3), task
types by a mix drawn once. Where HMAS_DATA_DIR names the public data, Azure's two request traces of 2023 go through it too.
"""

import csv
import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hmas.agents.qos.counters import TASKS as KINDS
from hmas.agents.qos.workload_watch import ARRIVALS, OUTPUTS, PROMPTS, TASKS, Lengths, WorkloadWatch

BLOCK_S = 5.0
FIGURES = (ARRIVALS, PROMPTS, OUTPUTS, TASKS)
QUIET_BLOCKS = 40_000
BEFORE, AFTER, REPEATS = 120, 60, 60
"""Blocks before and after a change, and how often each is tried."""
SHIFTS: tuple[tuple[str, str, dict[str, float]], ...] = (
    (ARRIVALS, "rate x 1.25", {"rate": 1.25}),
    (ARRIVALS, "rate x 1.5", {"rate": 1.5}),
    (ARRIVALS, "rate x 2", {"rate": 2.0}),
    (ARRIVALS, "rate x 0.5", {"rate": 0.5}),
    (PROMPTS, "prompts x 1.25", {"prompt": 1.25}),
    (PROMPTS, "prompts x 2", {"prompt": 2.0}),
    (OUTPUTS, "outputs x 1.5", {"output": 1.5}),
    (TASKS, "10 % change type", {"moved": 0.1}),
    (TASKS, "30 % change type", {"moved": 0.3}),
)
RATES = (2.0, 10.0, 50.0)

Sample = tuple[np.ndarray, np.ndarray, np.ndarray]


def block(
    rng: np.random.Generator, mix: np.ndarray, rate: float, *, prompt: float = 1.0, output: float = 1.0, moved: float = 0.0
) -> Sample:
    """Prompts, outputs and counts by task type of one block."""
    number = int(rng.poisson(rate * BLOCK_S))
    now = (1.0 - moved) * mix
    now[-1] += moved
    prompts = np.ceil(prompt * np.exp(rng.normal(6.0, 1.2, number)))
    outputs = np.ceil(output * 50.0 * (1.0 + rng.pareto(1.3, number)))
    return prompts, outputs, rng.multinomial(number, now / now.sum())


def offer(watch: WorkloadWatch, number: int, sample: Sample) -> list[str]:
    """Gives a block to the watch and returns the figures whose change it calls."""
    start_s, end_s = number * BLOCK_S, (number + 1) * BLOCK_S
    prompts, outputs, tasks = sample
    watch.arrivals(start_s, len(prompts), end_s)
    for figure, tokens in ((PROMPTS, prompts), (OUTPUTS, outputs)):
        logs = float(np.log(np.maximum(tokens, 1.0)).sum())
        watch.lengths(figure, Lengths(start_s, len(tokens), int(tokens.sum()), logs), end_s)
    watch.tasks(start_s, tasks, end_s)
    return [change.figure for change in watch.since(end_s)]


def some_mix(rng: np.random.Generator) -> np.ndarray:
    """Shares of the task types; the last one, to which requests move, has none."""
    return np.append(rng.dirichlet(np.full(len(KINDS) - 1, 0.5)), 0.0)


def false_alarms(rate: float) -> dict[str, Any]:
    """Changes called in a workload that never changes."""
    rng, watch = np.random.default_rng([7, int(rate)]), WorkloadWatch(BLOCK_S, KINDS)
    mix, called = some_mix(rng), Counter[str]()
    for number in range(QUIET_BLOCKS):
        called.update(offer(watch, number, block(rng, mix, rate)))
    return {"rate": rate, "blocks": QUIET_BLOCKS, "called": {figure: called[figure] for figure in FIGURES}}


def delay(figure: str, name: str, change: dict[str, float], rate: float) -> dict[str, Any]:
    """Blocks from a change to the call, over many tries."""
    found = []
    for attempt in range(REPEATS):
        rng, watch = np.random.default_rng([attempt, int(rate)]), WorkloadWatch(BLOCK_S, KINDS)
        mix = some_mix(rng)
        for number in range(BEFORE):
            offer(watch, number, block(rng, mix, rate))
        after = {key: value for key, value in change.items() if key != "rate"}
        for number in range(AFTER):
            if figure in offer(watch, BEFORE + number, block(rng, mix, rate * change.get("rate", 1.0), **after)):
                found.append(number + 1)
                break
    blocks = sorted(found + [AFTER + 1] * (REPEATS - len(found)))
    return {"figure": figure, "change": name, "rate": rate, "median_blocks": blocks[REPEATS // 2], "p90_blocks": blocks[9 * REPEATS // 10]}


def traced(path: Path) -> Iterator[Sample]:
    """Blocks of a trace with `arrival_s`, `context_tokens` and `generated_tokens`; it says nothing of task types."""
    with gzip.open(path, "rt") as lines:
        rows = np.array([(float(r["arrival_s"]), float(r["context_tokens"]), float(r["generated_tokens"])) for r in csv.DictReader(lines)])
    numbers = (rows[:, 0] // BLOCK_S).astype(int)
    for number in range(int(numbers.max())):
        inside = rows[numbers == number]
        yield inside[:, 1], inside[:, 2], np.eye(len(KINDS), dtype=int)[-1] * len(inside)


def on_trace(path: Path) -> dict[str, Any]:
    """Changes called on a real trace."""
    watch, called, blocks = WorkloadWatch(BLOCK_S, KINDS), Counter[str](), 0
    for number, sample in enumerate(traced(path)):
        called.update(offer(watch, number, sample))
        blocks += 1
    return {"trace": path.name.split(".")[0], "minutes": round(blocks * BLOCK_S / 60.0, 1), "called": {f: called[f] for f in FIGURES[:3]}}


def changes(data: str | None) -> dict[str, Any]:
    """All of it."""
    traces = sorted((Path(data) / "arrivals").glob("azure_llm_2023_*.csv.gz")) if data else []
    return {
        "block_s": BLOCK_S,
        "quiet": [false_alarms(rate) for rate in RATES],
        "delays": [delay(figure, name, change, rate) for figure, name, change in SHIFTS for rate in RATES],
        "traces": [on_trace(path) for path in traces],
    }
