"""What is asked: real prompts with the length that a model's answer to them had, or the project's own where no public data are there."""

import os
from pathlib import Path
from typing import NamedTuple

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.arrivals import ArrivalSpec
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.workload import WorkloadSpec, generate
from hmas_lab.agents.asked import TYPED, read_pool

DATA_ENV = "HMAS_DATA_DIR"
DRAWN = 3000
"""Questions that are written where no public data are there."""


class Question(NamedTuple):
    """A prompt, its task type, and how long the answer to it was."""

    text: str
    task: TaskType
    output_tokens: int


def data_dir() -> Path | None:
    """Folder of the public data, where the environment names one that has prompts."""
    folder = os.environ.get(DATA_ENV)
    return Path(folder) if folder and (Path(folder) / TYPED).exists() else None


def read_questions(folder: Path | None, *, max_prompt: int, max_output: int) -> list[Question]:
    """Questions of at most `max_prompt` tokens whose answer has at most `max_output` tokens, always in the same order.

    Args:
        folder: The public data; None takes texts and lengths from datasets/.
        max_prompt: Tokens. Longer ones are left out, not cut: a cut prompt is none that anybody sends.
        max_output: Tokens, likewise.

    Raises:
        TraceError: A file cannot be read, or nothing is left.
    """
    if folder is not None:
        pool = read_pool(folder, lambda _row: True)
        found = [Question(p.text, p.task, next(iter(p.output_tokens.values()))) for prompts in pool.prompts.values() for p in prompts]
    else:
        spec = WorkloadSpec(arrivals=ArrivalSpec(mean_rps=float(DRAWN), duration_s=1.0, process="poisson"), seed=0, length_scale=0.25)
        found = [Question(a.messages[0].content, a.task_type, a.output_tokens) for a in generate(spec, *load_mixture())]
    kept = [q for q in found if q.output_tokens <= max_output and estimate_tokens(q.text) <= max_prompt]
    if not kept:
        raise TraceError(f"no question has at most {max_prompt} prompt tokens and an answer of at most {max_output}")
    return kept
