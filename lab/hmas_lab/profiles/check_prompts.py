"""Composed prefill against an engine: Splitwise's times of single Llama-2-70B prompts (MIT), taken on A100 and H100 with vLLM of 2023."""

import csv
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hmas.engines.errors import ProfileError
from hmas_lab.profiles.compose import compose
from hmas_lab.profiles.models import load_model
from hmas_lab.profiles.tables import Tables

FILE = "splitwise_perf_model.csv.gz"
GPUS = {"a100-80gb": "a100_sxm", "h100-80gb": "h100_sxm"}
MODEL = "llama-3-70b"
"""The same layers as Llama-2-70B; only the output head is larger, which one row of logits does not show."""


class Prompt(NamedTuple):
    """One prompt's prefill, measured and composed."""

    gpu: str
    tp: int
    tokens: int
    measured_ms: float
    composed_ms: float

    @property
    def error(self) -> float:
        """Relative, signed: below 0 where the composition is faster."""
        return self.composed_ms / self.measured_ms - 1.0


def compare_prompts(folder: Path, tables: Mapping[str, Tables]) -> list[Prompt]:
    """Each prompt length's median time beside what a profile without host work says.

    Raises:
        ProfileError: The file is missing or a row is not what it should be.
    """
    path = folder / FILE
    times: dict[tuple[str, int, int], list[float]] = {}
    try:
        with gzip.open(path, "rt", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                if row["model"] == "llama2-70b" and row["hardware"] in GPUS and row["batch_size"] == "1":
                    try:
                        key = (GPUS[row["hardware"]], int(row["tensor_parallel"]), int(row["prompt_size"]))
                        times.setdefault(key, []).append(float(row["prompt_time"]))
                    except ValueError as error:
                        raise ProfileError(f"{path.name}, row {number}: {error}") from error
    except (OSError, KeyError) as error:
        raise ProfileError(f"{path}: {error}") from error
    model = load_model(MODEL)
    profiles = {key: compose(model, key[0], tp=key[1], tables=tables[key[0]]) for key in sorted({key[:2] for key in times})}
    prompts = []
    for (gpu, tp, tokens), measured in sorted(times.items()):
        pairs = tokens * (tokens + 1) // 2
        step_s = profiles[gpu, tp].step_duration_s(prefill_tokens=tokens, prefill_pairs=pairs, decode_seqs=0, decode_kv_tokens=0)
        prompts.append(Prompt(gpu, tp, tokens, float(np.median(measured)), 1e3 * step_s))
    return prompts


def report_prompts(prompts: list[Prompt]) -> list[str]:
    """Median errors by GPU and degree as lines of text."""
    lines = ["one prompt's prefill against Splitwise's Llama-2-70B runs: median error"]
    for gpu, tp in sorted({(prompt.gpu, prompt.tp) for prompt in prompts}):
        mine = [prompt for prompt in prompts if (prompt.gpu, prompt.tp) == (gpu, tp)]
        middle = [prompt.error for prompt in mine if 512 <= prompt.tokens <= 2048]
        every = np.median([prompt.error for prompt in mine])
        lines.append(
            f"  {gpu} tp {tp}: {every:+.1%} ({len(mine)} prompt lengths), of 512 to 2048 tokens {np.median(middle):+.1%} ({len(middle)})"
        )
    return lines
