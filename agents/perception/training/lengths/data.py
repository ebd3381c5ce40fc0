"""Rows of real output lengths, as `hmas eval perception` and the training of the shipped net read them from files."""

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.shapes import view_of_prompt
from hmas.controller.core.client_bodies import Shape
from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType

LENGTH_COLUMNS = ("dataset", "prompt_id", "model", "output_tokens")
MODEL_OUTPUT = "llm:"
"""How the origin of a typed row begins whose output is a model's."""
MAX_TOKENS = 10_000_000


class LengthRow(msgspec.Struct, frozen=True):
    """One answer of one model to one prompt.

    Attributes:
        dataset: Where the prompt comes from, such as `alpaca_eval:koala`.
        model: As the data name it.
        tokens: Length of the answer, 1 or more.
        task: What the data say of the prompt; `unknown` where nothing.
    """

    dataset: str
    prompt: str
    model: str
    tokens: int
    task: TaskType = TaskType.UNKNOWN


def view_of(row: LengthRow, shape: Shape = Shape.CHAT, exchanges: Sequence[tuple[str, str]] = ()) -> PromptView:
    """The prompt as the gateway would show it to perception when a client sends it in this shape."""
    return view_of_prompt(row.prompt, shape, exchanges=exchanges)


def read_multi_model(lengths: Path, prompts: Path) -> list[LengthRow]:
    """Reads `multi_model_output_lengths.csv.gz` and its `multi_model_prompts.jsonl.gz`, gzipped or not.

    Raises:
        TraceError: Names the file, the line and the field.
    """
    known: dict[tuple[str, str], str] = {}
    for line, row in _objects(prompts):
        dataset, key, prompt = (_text(row, field, prompts, line) for field in ("dataset", "prompt_id", "prompt"))
        known[dataset, key] = prompt
    rows = []
    with _opened(lengths) as file:
        reader = csv.DictReader(file)
        missing = [column for column in LENGTH_COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(f"{lengths}: the columns {', '.join(missing)} are missing; needed: {', '.join(LENGTH_COLUMNS)}")
        for line, entry in enumerate(reader, 2):
            found = known.get((entry["dataset"], entry["prompt_id"]))
            if found is None:
                raise TraceError(
                    f"{lengths}:{line}: prompt_id {entry['prompt_id']!r} of dataset {entry['dataset']!r} is not in {prompts}; "
                    "allowed: the prompts of that file"
                )
            tokens = _count(entry["output_tokens"], "output_tokens", lengths, line, least=0)
            if tokens:
                rows.append(LengthRow(entry["dataset"], found, entry["model"], tokens))
    if not rows:
        raise TraceError(f"{lengths}: no row has output_tokens of 1 or more")
    return rows


def read_typed(path: Path, origin: str = MODEL_OUTPUT, keep: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[LengthRow]:
    """Rows of `typed_prompts.jsonl.gz` with an output of some origin; none is not an error.

    Args:
        path: The file, gzipped or not.
        origin: How `output_origin` begins.
        keep: Tells by a row's fields whether to take it.

    Raises:
        TraceError: Names the file, the line and the field.
    """
    rows = []
    for line, row in _objects(path):
        came_from = str(row.get("output_origin") or "")
        tokens = row.get("output_tokens")
        if tokens and came_from.startswith(origin) and keep(row):
            try:
                task = TaskType(_text(row, "task_type", path, line))
            except ValueError:
                raise TraceError(f"{path}:{line}: task_type is {row['task_type']!r}; allowed: {', '.join(TaskType)}") from None
            rows.append(
                LengthRow(
                    _text(row, "source", path, line),
                    _text(row, "prompt", path, line),
                    came_from.removeprefix(MODEL_OUTPUT),
                    _count(tokens, "output_tokens", path, line, least=1),
                    task,
                )
            )
    return rows


def group_of(dataset: str) -> str:
    """The collection that a data set belongs to: `alpaca_eval:koala` is of `alpaca_eval`."""
    return dataset.split(":", 1)[0]


def by_collection(rows: Sequence[LengthRow]) -> dict[str, int]:
    """Rows per collection, largest first."""
    return dict(Counter(group_of(row.dataset) for row in rows).most_common())


def _opened(path: Path) -> TextIO:
    try:
        return gzip.open(path, "rt", encoding="utf-8", newline="") if path.suffix == ".gz" else path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; allowed: a readable file") from error


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _opened(path) as file:
        for line, text in enumerate(file, 1):
            try:
                yield line, msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise TraceError(f"{path}:{line}: {error}; allowed: one JSON object a line") from error


def _text(row: dict[str, Any], field: str, path: Path, line: int) -> str:
    value = row.get(field)
    if not isinstance(value, str):
        raise TraceError(f"{path}:{line}: {field} is {value!r}; allowed: a string")
    return value


def _count(value: Any, field: str, path: Path, line: int, *, least: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not least <= number <= MAX_TOKENS:
        raise TraceError(f"{path}:{line}: {field} is {value!r}; allowed: a whole number from {least} to {MAX_TOKENS}")
    return number
