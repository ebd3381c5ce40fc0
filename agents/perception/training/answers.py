"""Answers of language models: what the length model learns from and is evaluated on. Pure but for files."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.lengths.names import model_key
from hmas.agents.perception.lengths.text import NUMBERS, features_of
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.data import documents, view_of_prompt
from hmas.controller.core.errors import ModelError
from hmas.controller.core.types import TaskType

MODEL_OUTPUT = "llm:"
"""How the origin of a typed row begins whose output is a model's."""
MAX_TOKENS = 10_000_000
MAX_WEIGHT, MAX_SHIFT = 1000.0, 20.0


class LengthRow(msgspec.Struct, frozen=True):
    """One answer to one prompt.

    Attributes:
        dataset: Where the prompt comes from, such as `alpaca_eval:koala`.
        model: As the data name it; empty for an answer that is of no model.
        tokens: Length of the answer, 1 or more.
        task: What the data say of the prompt; `unknown` where nothing.
        weight: How much the answer counts.
        shift: Added to the logarithm of its length: an answer of a person or of an old model is moved to what models write.
    """

    dataset: str
    prompt: str
    model: str
    tokens: int
    task: TaskType = TaskType.UNKNOWN
    weight: float = 1.0
    shift: float = 0.0


class Example(msgspec.Struct, frozen=True):
    """One answer to learn from: its prompt's number, its model's key (empty for none), log length and weight."""

    prompt: int
    model: str
    log_length: float
    weight: float


class Corpus(msgspec.Struct, frozen=True):
    """Distinct prompts with their words and numbers, and the answers to them."""

    prompts: list[str]
    words: list[list[str]]
    numbers: NDArray[np.float32]
    examples: list[Example]


def read_answers(paths: Sequence[Path]) -> list[LengthRow]:
    """Reads JSON lines, plain or gzipped, with `prompt`, `output_tokens` and `model`.

    In place of `model` a row may have `output_origin` with a value such as `llm:gpt-4`, as typed prompts do. A row without a length or
    without a model is passed over. `source`, `weight` and `log_shift` are optional; see `LengthRow`.

    Raises:
        ModelError: A file cannot be read, a value is out of range, or no row is usable; names file, line and field.
    """
    rows = [row for path in paths for number, document in documents(path) if (row := _row(document, path, number)) is not None]
    if not rows:
        raise ModelError(
            f"no answer of a model in {', '.join(map(str, paths)) or 'no file'}; allowed: JSON lines with prompt, output_tokens and model "
            f"(or output_origin {MODEL_OUTPUT}NAME)"
        )
    return rows


def view_of(row: LengthRow) -> PromptView:
    """The prompt as the gateway would show it to perception when a client sends it as a chat of one message."""
    return view_of_prompt(row.prompt)


def corpus_of(rows: Sequence[LengthRow]) -> Corpus:
    """Brings rows together by prompt. The more answers a prompt has, the less each of them counts."""
    numbers: dict[str, int] = {}
    words, found_numbers = [], []
    gathered: list[tuple[int, LengthRow]] = []
    for row in rows:
        number = numbers.get(row.prompt)
        if number is None:
            number = numbers[row.prompt] = len(numbers)
            found = features_of(view_of(row))
            words.append(found.words)
            found_numbers.append(found.numbers)
        gathered.append((number, row))
    answers = Counter(number for number, _ in gathered)
    examples = [
        Example(number, model_key(row.model), math.log(row.tokens) + row.shift, row.weight / math.sqrt(answers[number]))
        for number, row in gathered
    ]
    return Corpus(list(numbers), words, np.array(found_numbers, np.float32).reshape(-1, len(NUMBERS)), examples)


def _row(document: dict[str, Any], path: Path, line: int) -> LengthRow | None:
    origin = str(document.get("output_origin") or "")
    model = document.get("model", origin.removeprefix(MODEL_OUTPUT) if origin.startswith(MODEL_OUTPUT) else None)
    if model is None or not document.get("output_tokens"):
        return None
    prompt, task = document.get("prompt"), document.get("task_type", TaskType.UNKNOWN.value)
    for name, value in (("prompt", prompt), ("model", model)):
        if not isinstance(value, str):
            raise ModelError(f"{path}:{line}: {name} is {value!r}; allowed: a text")
    if task not in set(TaskType):
        raise ModelError(f"{path}:{line}: task_type is {task!r}; allowed: {', '.join(TaskType)}")
    return LengthRow(
        dataset=str(document.get("source") or path.name),
        prompt=str(prompt),
        model=model,
        tokens=int(_number(document, "output_tokens", path, line, least=1, most=MAX_TOKENS)),
        task=TaskType(task),
        weight=_number(document, "weight", path, line, least=1e-6, most=MAX_WEIGHT, default=1.0),
        shift=_number(document, "log_shift", path, line, least=-MAX_SHIFT, most=MAX_SHIFT, default=0.0),
    )


def _number(document: dict[str, Any], name: str, path: Path, line: int, *, least: float, most: float, default: float = 0.0) -> float:
    value = document.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise ModelError(f"{path}:{line}: {name} is {value!r}; allowed: a number from {least:g} to {most:g}")
    return value
