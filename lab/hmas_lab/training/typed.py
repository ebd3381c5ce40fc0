"""The typed prompts that the shipped tagger learns from: public rows with the licences that count, and generated ones beside them."""

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hmas.agents.perception.training.data import Row, documents, read_rows
from hmas.agents.perception.training.split import parts_of
from hmas_lab.training.answers import NOT_PERMISSIVE
from hmas_lab.training.generator import Material, generate
from hmas_lab.training.licences import SOURCES, T0_PREFIX, dataset_of, licence_of

PROMPTS_FILE = "prompts/typed_prompts.jsonl.gz"
"""Where typed prompts lie in the data folder."""
LENGTH_FILES = ("prompts/multi_model_prompts.jsonl.gz", "prompts/multi_model_output_lengths.csv.gz")
"""Where output lengths of many models lie: prompts and lengths."""
SAME_CHARS = 1500
"""Beginning by which two files' prompts are recognised as the same."""
GENERATED_PROMPTS, SEED = 90_000, 1
"""Of the shipped tagger's training."""


def typed_rows(path: Path) -> list[Row]:
    """The rows of a file of typed prompts, each with the licence that counts for it.

    Raises:
        ModelError: As `read_rows` does.
    """
    return [msgspec.structs.replace(row, licence=_licence(row)) for row in read_rows([path])]


def load(folder: Path) -> list[Row]:
    """The typed prompts of the data folder, with output lengths of many models where those files are there, too.

    Raises:
        ModelError: As `read_rows` does.
    """
    rows = typed_rows(folder / PROMPTS_FILE)
    prompts, lengths = (folder / name for name in LENGTH_FILES)
    return with_lengths(rows, prompts, lengths) if prompts.is_file() and lengths.is_file() else rows


def with_lengths(rows: Sequence[Row], prompts: Path, lengths: Path) -> list[Row]:
    """The rows with the output lengths that many models had on their prompts, where two files of such lengths hold the same prompt.

    Args:
        rows: Typed prompts.
        prompts: JSON lines with `dataset`, `prompt_id` and `prompt`.
        lengths: CSV with `dataset`, `prompt_id` and `output_tokens`.
    """
    found: dict[tuple[str, str], list[int]] = {}
    with gzip.open(lengths, "rt", encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            found.setdefault((line["dataset"], line["prompt_id"]), []).append(int(line["output_tokens"]))
    by_prompt: dict[str, list[int]] = {}
    for _, document in documents(prompts):
        if not str(document["dataset"]).startswith(NOT_PERMISSIVE):
            key = (document["dataset"], document["prompt_id"])
            by_prompt.setdefault(document["prompt"][:SAME_CHARS], []).extend(found.get(key, []))
    return [msgspec.structs.replace(row, lengths=tuple(n for n in by_prompt.get(row.prompt[:SAME_CHARS], ()) if n > 0)) for row in rows]


def own_rows(rows: Sequence[Row], count: int = GENERATED_PROMPTS, seed: int = SEED, *, without: Sequence[str] = ()) -> list[Row]:
    """The project's own prompts, with material of the training part of the rows.

    Args:
        rows: From `load`.
        count: Number of prompts.
        seed: Of everything that is drawn.
        without: As in `parts_of`.
    """
    return generate(count, seed, Material(parts_of(rows, without=without).train))


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Writes rows as `hmas train perception` reads them: the same rows come back."""
    with path.open("wb") as out, gzip.GzipFile("", "wb", fileobj=out, mtime=0) as file:
        for row in rows:
            file.write(json.dumps(_document(row)).encode() + b"\n")


def _document(row: Row) -> dict[str, Any]:
    licence = row.licence or ""
    if licence and (dataset := dataset_of(row.rule)):
        # Attribution goes by the dataset under a template.
        licence = f"{licence} ({dataset.removeprefix('/')})"
    return {
        "prompt": row.prompt,
        "task_type": row.task.value,
        "source": row.source,
        "label_rule": row.rule,
        "license": licence,
        "prompt_chars": row.prompt_chars,
        "output_tokens": row.output_tokens,
        "output_origin": "llm" if row.output_tokens else "",
        "lengths": list(row.lengths),
        "has_tools": row.has_tools,
        "turns": row.turns,
        "images": row.images,
    }


def _licence(row: Row) -> str | None:
    known = row.rule.startswith(T0_PREFIX) or row.source in SOURCES
    return licence_of(row.source, row.rule, "") if known else row.licence
