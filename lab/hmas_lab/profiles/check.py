"""Composed profiles against a real engine: ML.ENERGY's vLLM runs on H100, time per output token against batch size (ml_energy_llm.csv)."""

import csv
from collections.abc import Sequence
from math import floor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile
from hmas_lab.profiles.compose import Host, compose
from hmas_lab.profiles.models import load_model
from hmas_lab.profiles.reduce import least_squares, rounded
from hmas_lab.profiles.tables import Tables

GPU = "h100_sxm"
FILE = "ml_energy_llm.csv"

SHAPES = {
    "Llama-3.1-8B-Instruct": "llama-3-8b",
    "Llama-3.1-70B-Instruct": "llama-3-70b",
    "Llama-3.3-70B-Instruct": "llama-3-70b",
    "Qwen3-8B": "qwen3-8b",
    "Qwen3-14B": "qwen3-14b",
    "Qwen3-32B": "qwen3-32b",
    "Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "Qwen3-30B-A3B-Thinking-2507": "qwen3-30b-a3b",
}
"""Models of the file whose shape datasets/models/ has."""


class Task(NamedTuple):
    """What the file does not say of a task's requests: prompt tokens, and the mean age of a running request as a share of its output.

    Where memory bounded the batch, capacity over batch size gives the mean context, and these agree with it: chat answers vary in length
    (long ones are seen for longer, so the age is about the mean length), reasoning traces are alike (about half of it).
    """

    prompt_tokens: int
    age_share: float


TASKS = {"lm-arena-chat": Task(200, 1.0), "gpqa": Task(300, 0.5)}


class Row(NamedTuple):
    """One run of an engine at a steady batch."""

    model: str
    tp: int
    task: str
    batch: float
    output_tokens: float
    itl_ms: float


class Compared(NamedTuple):
    """One run, measured and predicted."""

    row: Row
    predicted_ms: float

    @property
    def error(self) -> float:
        """Relative, signed: below 0 where the prediction is too fast."""
        return self.predicted_ms / self.row.itl_ms - 1.0


class Halves(NamedTuple):
    """Host work estimated from one half of the runs, and median absolute errors on runs that it was not estimated from.

    Attributes:
        host: So much per step and per sequence, from every other run.
        runs: How many the other half has.
        without: The kernels alone, on the other half.
        with_step: With a constant per step only.
        with_both: With `host`.
        other_models: Each model's runs with host work estimated from all other models' runs, all runs together.
    """

    host: Host
    runs: int
    without: float
    with_step: float
    with_both: float
    other_models: float


def read_rows(folder: Path) -> list[Row]:
    """The runs on one or more H100 with 16-bit weights and tensor parallelism only, sorted.

    Raises:
        ProfileError: The file is missing or a row is not what it should be.
    """
    path = folder / FILE
    rows = []
    try:
        with path.open(newline="") as file:
            for number, line in enumerate(csv.DictReader(file), 2):
                shape = SHAPES.get(line["model_id"].rsplit("/", 1)[-1])
                plain = line["expert_parallel"] == line["data_parallel"] == "1" and line["weight_precision"] == "bfloat16"
                if shape is None or not plain or line["gpu_model"] != "H100" or line["task"] not in TASKS:
                    continue
                try:
                    numbers = (float(line["avg_batch_size"]), float(line["avg_output_len"]), float(line["median_itl_ms"]))
                    rows.append(Row(shape, int(line["tensor_parallel"]), line["task"], *numbers))
                except ValueError as error:
                    raise ProfileError(f"{path.name}, row {number}: {error}") from error
    except (OSError, KeyError) as error:
        raise ProfileError(f"{path}: {error}") from error
    return sorted(rows)


def work(row: Row) -> dict[str, int]:
    """The median step's work. Requests are replaced as they end, so a step takes up a Poisson number of new prompts."""
    task = TASKS[row.task]
    batch = round(row.batch)
    rate = row.batch / row.output_tokens
    prompts = max(0, floor(rate + 1 / 3 - 0.02 / rate))
    pairs = task.prompt_tokens * (task.prompt_tokens + 1) // 2
    context = task.prompt_tokens + task.age_share * row.output_tokens
    return {
        "prefill_tokens": prompts * task.prompt_tokens,
        "prefill_pairs": prompts * pairs,
        "decode_seqs": batch,
        "decode_kv_tokens": round(batch * context),
    }


def compare(rows: Sequence[Row], tables: Tables, host: Host) -> list[Compared]:
    """Each run beside what a profile composed for it predicts. Nothing is fitted."""
    profiles: dict[tuple[str, int], Profile] = {}
    result = []
    for row in rows:
        key = (row.model, row.tp)
        if key not in profiles:
            profiles[key] = compose(load_model(row.model), GPU, tp=row.tp, tables=tables, host=host)
        result.append(Compared(row, 1e3 * profiles[key].step_duration_s(**work(row))))
    return result


def median_error(compared: Sequence[Compared]) -> float:
    """Median absolute relative error."""
    return float(np.median([abs(one.error) for one in compared]))


def host_work(compared: Sequence[Compared]) -> Host:
    """What is left after the kernels, as so much per step and so much per sequence: least squares in relative error."""
    measured = np.array([one.row.itl_ms for one in compared])
    rest = measured - np.array([one.predicted_ms for one in compared])
    rows = np.array([(1.0, one.row.batch) for one in compared])
    step_ms, ms_per_seq = least_squares(rows, rest, 1.0 / measured)
    return Host(step_ms=rounded(float(step_ms)), ms_per_seq=rounded(float(ms_per_seq)))


def hosted(compared: Sequence[Compared], host: Host) -> list[Compared]:
    """The same runs with host work added to the predictions."""
    return [run._replace(predicted_ms=run.predicted_ms + host.step_ms + host.ms_per_seq * run.row.batch) for run in compared]


def halves(compared: Sequence[Compared]) -> Halves:
    """Estimates host work from part of the runs and tries it on the rest.

    Args:
        compared: Runs beside predictions without host work, in order of model, task and batch.
    """
    fit, test = compared[::2], compared[1::2]
    host = host_work(fit)
    step_only = Host(step_ms=float(np.median([run.row.itl_ms - run.predicted_ms for run in fit])))
    crossed: list[Compared] = []
    for model in sorted({run.row.model for run in compared}):
        others = host_work([run for run in compared if run.row.model != model])
        crossed += hosted([run for run in compared if run.row.model == model], others)
    return Halves(
        host=host,
        runs=len(test),
        without=median_error(test),
        with_step=median_error(hosted(test, step_only)),
        with_both=median_error(hosted(test, host)),
        other_models=median_error(crossed),
    )


def report(compared: Sequence[Compared], split: Halves, *, rows: bool) -> list[str]:
    """The comparison as lines of text: kernels alone, then with `split.host`."""
    lines = [f"{'model':14} tp  {'task':14} runs  median |error|: kernels  with host work"]
    for key in sorted({run.row[:3] for run in compared}):
        mine = [run for run in compared if run.row[:3] == key]
        lines.append(
            f"{key[0]:14} {key[1]:2}  {key[2]:14} {len(mine):4} {median_error(mine):23.1%} {median_error(hosted(mine, split.host)):15.1%}"
        )
        for run, with_host in zip(mine, hosted(mine, split.host), strict=True) if rows else ():
            lines.append(
                f"    batch {run.row.batch:6.1f}: measured {run.row.itl_ms:7.2f} ms, kernels {run.predicted_ms:7.2f} ({run.error:+.1%}), "
                f"with host work {with_host.predicted_ms:7.2f} ({with_host.error:+.1%})"
            )
    lines.append(f"all {len(compared)} runs: {median_error(compared):.1%} with the kernels alone; nothing is fitted")
    lines.append(
        f"host work from every other run: {split.host.step_ms:g} ms per step and {split.host.ms_per_seq:g} ms per sequence; on the other "
        f"{split.runs} runs {split.without:.1%} without, {split.with_step:.1%} with a constant per step, {split.with_both:.1%} with both"
    )
    lines.append(f"host work from all other models' runs: {split.other_models:.1%}")
    return lines
