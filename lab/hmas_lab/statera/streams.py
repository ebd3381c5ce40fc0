"""Streams of requests on which length bounds are tried: one that stays as it is, and three that do not."""

import gzip
import json
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.requests import draw_requests
from hmas.loadgen.streams import stream
from hmas.workloads.phases import INTERACTIVE, LONG, conversation

Scenario = Literal["stationary", "semantic shift", "predictor goes bad", "new long tenant"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
PROMPTS = "typed_prompts.jsonl.gz"
WORSE = 0.25
"""What a predictor that has gone bad says, as a share of what it said before."""
NEW_SHARE = 0.2
"""Share of the traffic that a new tenant takes."""


class Sample(NamedTuple):
    """One request: who sends it, its lengths, and the factor on what is predicted of it."""

    tenant: str
    prompt_tokens: int
    output_tokens: int
    factor: float


class Pool:
    """Pairs of prompt and output length, of short and of long tasks."""

    def __init__(self, data: Path | None, count: int, seed: int) -> None:
        """Real ones of language models' answers where `data` (a folder with prompts/) has them, else drawn from the project's mixture."""
        path = None if data is None else data / "prompts" / PROMPTS
        self.real = path is not None and path.is_file()
        self.short, self.long = _read(path) if path is not None and self.real else _drawn(count, seed)


def draw(pool: Pool, scenario: Scenario, count: int, seed: int) -> list[Sample]:
    """A stream that changes at its middle, or does not."""
    rng = stream(seed, "statera", SCENARIOS.index(scenario))
    late = np.arange(count) >= count // 2
    at = rng.random(count)
    if scenario == "semantic shift":
        is_long = late
    elif scenario == "new long tenant":
        is_long = late & (at < NEW_SHARE)
    else:
        is_long = at < NEW_SHARE
    rows = rng.random(count)
    samples = []
    for number in range(count):
        side = pool.long if is_long[number] else pool.short
        prompt, output = side[int(rows[number] * len(side))]
        tenant = "newcomer" if scenario == "new long tenant" and is_long[number] else "resident"
        factor = WORSE if scenario == "predictor goes bad" and late[number] else 1.0
        samples.append(Sample(tenant, prompt, output, factor))
    return samples


def _drawn(count: int, seed: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    mixture, _ = load_mixture()
    found = []
    for number, tasks in enumerate((INTERACTIVE, LONG)):
        made = draw_requests(mixture, count, seed + number, [conversation(mixture, tasks)])
        found.append(list(zip(made.prompt_tokens.tolist(), made.output_tokens.tolist(), strict=True)))
    return found[0], found[1]


def _read(path: Path) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    short: list[tuple[int, int]] = []
    long: list[tuple[int, int]] = []
    sides = {task.value: short for task in INTERACTIVE} | {task.value: long for task in LONG}
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        for line in handle:
            row = json.loads(line)
            side = sides.get(row["task_type"])
            if side is not None and row["output_origin"].startswith("llm:") and row["output_tokens"] > 0:
                side.append((max(1, row["prompt_tokens"]), row["output_tokens"]))
    return short, long
