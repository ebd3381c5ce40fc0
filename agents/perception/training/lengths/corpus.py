"""What the shipped net of output lengths learns from: real outputs of language models, brought together by prompt. Pure but for files.

Collections and rows whose licence does not let weights be passed on are left out. Classes for which no model's outputs are there
(summaries, extraction) lean on human references; these, and the answers of models that are terser than those served now, are moved to what
models are known to write. Public translations with a permissive licence are too few: demands for them are generated.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.lengths.names import model_key
from hmas.agents.perception.lengths.priors import PRIOR
from hmas.agents.perception.lengths.text import NUMBERS, features_of
from hmas.agents.perception.training.lengths.data import LengthRow, group_of, read_multi_model, read_typed, view_of
from hmas.agents.perception.training.licences import licence_for_training
from hmas.controller.core.types import TaskType
from hmas.engines.tokens import estimate_tokens

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


class Example(msgspec.Struct, frozen=True):
    """One answer to learn from: its prompt's number, its model's key (empty for a human), log length and weight."""

    prompt: int
    model: str
    log_length: float
    weight: float


class Corpus(msgspec.Struct, frozen=True):
    """Distinct prompts with what they say, and the answers to them."""

    prompts: list[str]
    words: list[list[str]]
    numbers: NDArray[np.float32]
    examples: list[Example]
    collections: list[str]


def corpus_of(rows: Sequence[LengthRow], references: Sequence[LengthRow] = ()) -> Corpus:
    """Brings rows together by prompt. An answer counts the less, the more of them its prompt has."""
    numbers: dict[str, int] = {}
    collections: list[str] = []
    gathered: list[tuple[int, str, float, float]] = []
    middles: dict[tuple[TaskType, str], list[float]] = defaultdict(list)
    for row in references:
        middles[row.task, row.model].append(math.log(row.tokens))
    shift = {(task, model): math.log(PRIOR[task].p50) - float(np.median(values)) for (task, model), values in middles.items()}
    shift[TaskType.TRANSLATION, HUMAN] = 0.0  # a model's translation is as long as a translator's
    words, found_numbers = [], []
    for row, model, moved, weight in [
        *((row, model_key(row.model), 0.0, 1.0) for row in rows),
        *((row, "", shift[row.task, row.model], _weight(row)) for row in references),
    ]:
        number = numbers.get(row.prompt)
        if number is None:
            number = numbers[row.prompt] = len(numbers)
            found = features_of(view_of(row))
            words.append(found.words)
            found_numbers.append(found.numbers)
            collections.append(group_of(row.dataset))
        gathered.append((number, model, math.log(row.tokens) + moved, weight))
    answers = Counter(number for number, *_ in gathered)
    examples = [Example(number, model, length, weight / math.sqrt(answers[number])) for number, model, length, weight in gathered]
    return Corpus(list(numbers), words, np.array(found_numbers, np.float32).reshape(-1, len(NUMBERS)), examples, collections)


def _weight(reference: LengthRow) -> float:
    return REFERENCE_WEIGHT if reference.model == HUMAN and reference.task is not TaskType.TRANSLATION else OLD_WEIGHT


def gather(lengths: Path, prompts: Path, typed: Path | None, *, all_licences: bool = False) -> Corpus:
    """Brings the files together.

    Args:
        lengths: Table of output lengths by model.
        prompts: Its prompts.
        typed: Typed prompts with outputs.
        all_licences: Also take collections that do not let weights be passed on.

    Raises:
        TraceError: A file cannot be read; names the line and the field.
    """
    rows, references = answers_of(lengths, prompts, typed, all_licences=all_licences)
    return corpus_of(rows, [*references, *_translations([row.prompt for row in rows])])


def answers_of(lengths: Path, prompts: Path, typed: Path | None, *, all_licences: bool = False) -> tuple[list[LengthRow], list[LengthRow]]:
    """Answers of models as they are served, and references; arguments and errors as of `gather`."""
    answers = [
        row
        for row in read_multi_model(lengths, prompts)
        if (all_licences or group_of(row.dataset) not in NOT_PERMISSIVE) and not row.model.startswith(UNTUNED)
    ]
    references = [msgspec.structs.replace(row, task=TaskType.INSTRUCTION_FOLLOWING) for row in answers if row.model.startswith(OLD)]
    rows = [row for row in answers if not row.model.startswith(OLD)]
    if typed is not None:
        rows += [row for row in read_typed(typed, "llm", _any if all_licences else _licensed) if not row.dataset.startswith(ELSEWHERE)]
        references += [row for row in read_typed(typed, HUMAN, _any if all_licences else _licensed) if row.task in REFERENCES]
    return rows, references


def _any(_row: dict[str, Any]) -> bool:
    return True


def _licensed(row: dict[str, Any]) -> bool:
    """Whether weights that learnt from a row may be passed on."""
    fields = [str(row.get(field) or "") for field in ("source", "label_rule", "license")]
    return licence_for_training(*fields) is not None


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
