"""What the shipped length model learns from: real answers of language models, brought together from public data. Pure but for files.

Collections and rows whose licence does not let weights be passed on are left out. Classes for which no model's outputs are there
(summaries, extraction) lean on human references; these, and the answers of models that are terser than those served now, are moved to what
models are known to write. Public translations with a permissive licence are too few: demands for them are generated.
"""

import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np

from hmas.agents.perception.lengths.priors import PRIOR
from hmas.agents.perception.training.answers import MAX_TOKENS, MODEL_OUTPUT, LengthRow
from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.engines.tokens import estimate_tokens
from hmas_lab.training.licences import licence_of

LENGTH_COLUMNS = ("dataset", "prompt_id", "model", "output_tokens")
NOT_PERMISSIVE = ("alpaca_eval",)
"""Collections to measure on only: CC BY-NC."""
ELSEWHERE = ("Quehry/HelloBench", "lmarena/arena-hard-auto", "yizhongw/self-instruct")
"""Sources of typed rows whose outputs the multi-model file holds already."""
UNTUNED = ("davinci",)
"""Models, by the beginning of their names, that were never taught to answer: what they write says nothing of those that are served."""
OLD = ("text-davinci",)
OLD_WEIGHT = 0.5
"""Models from before models were taught to converse, terser than those served now: taken as references, and how much one counts."""
TRANSLATIONS = 700
TRANSLATED_CHARS = 900
LANGUAGES = (
    "English",
    "German",
    "French",
    "Spanish",
    "Chinese",
    "Japanese",
    "Russian",
    "Czech",
    "Italian",
    "Portuguese",
    "Hindi",
    "Arabic",
)
ASKED = (
    "Translate the following text from {first} to {second}:\n{text}",
    "Translate into {second}: {text}",
    "{text}\n\nTranslate this to {second}.",
    "Please give me the {second} translation of this {first} text: {text}",
    "{first}: {text}\n{second}:",
    "How do you say this in {second}? {text}",
)
"""Public translations with a permissive licence are rare: so many are generated, of texts up to this long, in these words."""
REFERENCES = (TaskType.TRANSLATION, TaskType.SUMMARIZATION, TaskType.EXTRACTION)
"""Task types that lean on human references, and how much one of these counts."""
HUMAN = "human"
REFERENCE_WEIGHT = 0.1


def gather(lengths: Path, prompts: Path, typed: Path | None) -> list[LengthRow]:
    """Brings the files together: answers of models as they are served, then references and generated translations.

    Args:
        lengths: Table of output lengths by model.
        prompts: Its prompts.
        typed: Typed prompts with outputs.

    Raises:
        TraceError: A file cannot be read; names the line and the field.
    """
    rows, references = answers_of(lengths, prompts, typed)
    return [*rows, *as_references([*references, *_translations([row.prompt for row in rows])])]


def as_references(rows: Sequence[LengthRow]) -> list[LengthRow]:
    """The rows as answers of no model, moved to what models write, each with its weight."""
    middles: dict[tuple[TaskType, str], list[float]] = defaultdict(list)
    for row in rows:
        middles[row.task, row.model].append(math.log(row.tokens))
    shift = {(task, model): math.log(PRIOR[task].p50) - float(np.median(values)) for (task, model), values in middles.items()}
    shift[TaskType.TRANSLATION, HUMAN] = 0.0  # a model's translation is as long as a translator's
    return [msgspec.structs.replace(row, model="", weight=_weight(row), shift=shift[row.task, row.model]) for row in rows]


def answers_of(lengths: Path, prompts: Path, typed: Path | None) -> tuple[list[LengthRow], list[LengthRow]]:
    """Answers of models as they are served, and references; arguments and errors as of `gather`."""
    answers = [
        row
        for row in read_multi_model(lengths, prompts)
        if group_of(row.dataset) not in NOT_PERMISSIVE and not row.model.startswith(UNTUNED)
    ]
    references = [msgspec.structs.replace(row, task=TaskType.INSTRUCTION_FOLLOWING) for row in answers if row.model.startswith(OLD)]
    rows = [row for row in answers if not row.model.startswith(OLD)]
    if typed is not None:
        rows += [row for row in read_typed(typed, "llm", _licensed) if not row.dataset.startswith(ELSEWHERE)]
        references += [row for row in read_typed(typed, HUMAN, _licensed) if row.task in REFERENCES]
    return rows, references


def write_answers(rows: Sequence[LengthRow], path: Path) -> None:
    """Writes rows as `hmas train lengths` and `hmas eval lengths` read them."""
    with path.open("wb") as out, gzip.GzipFile("", "wb", fileobj=out, mtime=0) as file:
        for row in rows:
            more = {} if row.model else {"weight": row.weight, "log_shift": row.shift}
            fields = {
                "prompt": row.prompt,
                "output_tokens": row.tokens,
                "model": row.model,
                "source": row.dataset,
                "task_type": row.task.value,
            }
            file.write(json.dumps(fields | more).encode() + b"\n")


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


def _weight(reference: LengthRow) -> float:
    return REFERENCE_WEIGHT if reference.model == HUMAN and reference.task is not TaskType.TRANSLATION else OLD_WEIGHT


def _licensed(row: dict[str, Any]) -> bool:
    """Whether weights that learnt from a row may be passed on."""
    return licence_of(*(str(row.get(field) or "") for field in ("source", "label_rule", "license"))) is not None


def _translations(texts: Sequence[str], seed: int = 5) -> list[LengthRow]:
    """Generated demands for translations of such texts; what comes is about as long as what went in."""
    rng = np.random.default_rng(seed)
    short = sorted({text for text in texts if len(text) <= TRANSLATED_CHARS})
    rows = []
    for place in rng.permutation(len(short))[:TRANSLATIONS]:
        text = short[place]
        first, second = rng.choice(LANGUAGES, 2, replace=False)
        asked = str(rng.choice(ASKED)).format(first=first, second=second, text=text)
        tokens = estimate_tokens(text) * rng.lognormal(math.log(1.15), 0.25)
        rows.append(LengthRow("generated", asked, HUMAN, max(1, round(tokens)), TaskType.TRANSLATION))
    return rows


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
