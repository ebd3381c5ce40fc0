"""Evaluates the length model with a reader, in every regime and shape of request, on answers or on prompts held out."""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.lengths.base import LengthBase, Stored
from hmas.agents.perception.readers import ReaderSource
from hmas.agents.perception.reading import PromptView, Reading
from hmas.agents.perception.training.answers import LengthRow, corpus_of
from hmas.agents.perception.training.evaluation import read_soundly
from hmas.agents.perception.training.lengths import Plan, fit_checked
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.types import TaskType
from hmas_lab.lengths.by_shape import beside_bare, by_shape
from hmas_lab.lengths.evaluation import REGIMES, evaluate, perceived


def judge(
    rows: Sequence[LengthRow],
    *,
    reader: str = "shipped",
    regimes: Sequence[str] = REGIMES,
    shapes: bool = True,
    most: int | None = None,
    trained: Sequence[LengthRow] = (),
    held_out: Sequence[LengthRow] = (),
    seed: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Evaluates output lengths.

    Args:
        rows: Answers of models to prompts.
        reader: As `agents.perception_reader`.
        regimes: The regimes to evaluate.
        shapes: Whether every shape of request is evaluated, too.
        most: If there are more rows, this many are drawn at random.
        trained: Answers with which the text baselines begin.
        held_out: Answers to learn from for a held-out evaluation: a base is trained on three quarters of their prompts and evaluated on
            the rest of the rows, without the reader's own lengths. Empty: the reader's own base.
        seed: Seed of the draw and of the order of arrival.
        say: Takes one line of text on the progress.

    Raises:
        ModelError: The reader cannot be opened.
    """
    if most is not None and len(rows) > most:
        rows = [rows[place] for place in np.sort(np.random.default_rng(seed).choice(len(rows), most, replace=False))]
    settings = AgentsConfig(perception_reader=reader)
    opened = ReaderSource(settings, ModelStore(Path())).open()
    base: LengthBase | None = opened.lengths
    if held_out:
        rows, base = _held_out_of(held_out, rows, say)
    say(f"{len(rows)} answers; prompts are read by {opened.name}")

    def read(views: Sequence[PromptView]) -> list[tuple[Reading, TaskType]]:
        found = read_soundly(opened.reader, views, settings.perception_min_confidence)
        # The reader was trained on these prompts too, so its lengths would favour a base that was not.
        return [(Reading(probabilities=reading.probabilities), task) for reading, task in found] if held_out else found

    found: dict[str, Any] = {"reader": opened.name, "rows": len(rows), "held_out": bool(held_out), "regimes": {}}
    if regimes:
        found |= evaluate(rows, perceived(rows, read), base=base, regimes=regimes, trained=trained, seed=seed, report=say)
    if shapes:
        scores = by_shape(rows, read, base, seed=seed)
        found["by_shape"] = msgspec.to_builtins(scores)
        found["beside_bare"] = {answers: beside_bare(one) for answers, one in scores.items()}
    return found


def _held_out_of(learnt: Sequence[LengthRow], rows: Sequence[LengthRow], say: Callable[[str], None]) -> tuple[list[LengthRow], LengthBase]:
    """The rows of a quarter of all prompts, chosen by a hash of their text, and a base that was trained without these."""
    corpus = corpus_of(learnt)
    examples = [example for example in corpus.examples if not _is_held_out(corpus.prompts[example.prompt])]
    document = fit_checked(msgspec.structs.replace(corpus, examples=examples), Plan(), say)
    return [row for row in rows if _is_held_out(row.prompt)], LengthBase(msgspec.convert(document, Stored))


def _is_held_out(prompt: str) -> bool:
    return zlib.crc32(prompt.encode("utf-8", "replace")) % 4 == 0
