"""What real people asked and what real models answered: prompts with a task type and the length of an answer, as requests to come."""

import csv
import gzip
import io
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import orjson

from hmas.controller.core.client_bodies import Shape, client_body
from hmas.controller.core.errors import TraceError
from hmas.controller.core.messages import RequestNotice
from hmas.controller.core.notices import notice_of as core_notice
from hmas.controller.core.request_body import read_call
from hmas.controller.core.types import TaskType

TYPED = "prompts/typed_prompts.jsonl.gz"
PROMPTS = "prompts/multi_model_prompts.jsonl.gz"
LENGTHS = "prompts/multi_model_output_lengths.csv.gz"
ANSWERED = "llm"
"""What `output_origin` begins with where a language model wrote the answer; human references are far shorter than what models say."""
JOINED = "hellobench:main_exp:"
"""The part of the multi-model file whose prompts have a task type and were all answered by the same models."""
MAX_TOKENS = 2048
"""Cap that every client declares, where nothing else is said, and longest answer."""
KEY_CHARS = 1500


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt.

    Attributes:
        text: As it is sent.
        task: Its type, by the data's own label.
        source: The data set that it comes from.
        output_tokens: Length of the answer by the model that gave it; "" stands for the one model that answered where there is but one.
    """

    text: str
    task: TaskType
    source: str
    output_tokens: Mapping[str, int]

    def answered_by(self, model: str, cap: int) -> int:
        """Tokens that `model` answers, 1 to `cap`; by the only one that answered where there is but one."""
        tokens = self.output_tokens.get(model) or next(iter(self.output_tokens.values()))
        return max(1, min(cap, tokens))


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts by task type, and the models whose answers to the same prompts are known, by name."""

    prompts: Mapping[TaskType, tuple[Prompt, ...]]
    models: tuple[str, ...]

    @property
    def size(self) -> int:
        """Prompts in all."""
        return sum(map(len, self.prompts.values()))


Keep = Callable[[Mapping[str, Any]], bool]
"""Whether a row of the typed prompts may be used: those on which a model was trained must not judge it."""


def read_pool(folder: Path, keep: Keep) -> Pool:
    """Reads the typed prompts that language models answered, with the lengths of many models where they are known.

    Args:
        folder: As `HMAS_DATA_DIR` names it.
        keep: Rows for which it is false are left out.

    Raises:
        TraceError: A file is missing or not what it should be, or nothing is left.
    """
    lengths = _joined_lengths(folder)
    prompts: dict[TaskType, list[Prompt]] = defaultdict(list)
    seen: set[str] = set()
    for row in _rows(folder / TYPED):
        if not str(row.get("output_origin", "")).startswith(ANSWERED) or not row.get("output_tokens") or not keep(row):
            continue
        text = row["prompt"]
        if text in seen:
            continue
        seen.add(text)
        known = lengths.get(_key(text)) or {"": int(row["output_tokens"])}
        task = TaskType(row["task_type"])
        prompts[task].append(Prompt(text=text, task=task, source=row["source"], output_tokens=known))
    if not prompts:
        raise TraceError(f"{folder / TYPED}: no prompt is left that a model answered")
    models = set.intersection(*(set(known) for known in lengths.values())) if lengths else set()
    return Pool(prompts=MappingProxyType({task: tuple(found) for task, found in sorted(prompts.items())}), models=tuple(sorted(models)))


def write_without(folder: Path, out: Path, judged: Keep) -> int:
    """Writes the three files again without the prompts on which models are judged; returns how many typed ones are left out.

    Raises:
        TraceError: A file is missing or cannot be written.
    """
    typed = list(_rows(folder / TYPED))
    left_out = {row["prompt"] for row in typed if judged(row)}
    beginnings = {_key(text) for text in left_out}
    prompts = list(_rows(folder / PROMPTS))
    gone = {(row["dataset"], row["prompt_id"]) for row in prompts if _key(row["prompt"]) in beginnings}
    try:
        (out / TYPED).parent.mkdir(parents=True, exist_ok=True)
        for name, rows in (
            (TYPED, [row for row in typed if row["prompt"] not in left_out]),
            (PROMPTS, [row for row in prompts if (row["dataset"], row["prompt_id"]) not in gone]),
        ):
            with gzip.open(out / name, "wb") as file:
                file.writelines(orjson.dumps(row) + b"\n" for row in rows)
        with _opened(folder / LENGTHS) as lines, gzip.open(out / LENGTHS, "wt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(lines)
            writer = csv.DictWriter(file, reader.fieldnames or [])
            writer.writeheader()
            writer.writerows(row for row in reader if (row["dataset"], row["prompt_id"]) not in gone)
    except OSError as error:
        raise TraceError(f"{out}: {error.strerror}") from error
    return len(left_out)


@lru_cache(maxsize=8192)
def _call(text: str, model: str, cap: int) -> RequestNotice:
    """What the gateway tells of a chat of one message, without what is the request's own."""
    path, document = client_body(Shape.CHAT, text, model=model, rng=random.Random(0), max_tokens=cap)
    return core_notice(read_call(path, document))


def notice_of(text: str, *, model: str, request_id: str, tenant: str, sent_s: float, cap: int = MAX_TOKENS) -> RequestNotice:
    """The gateway's notice of a chat of one message, made by the gateway's own reading of the body; no targets are declared."""
    return msgspec.structs.replace(_call(text, model, cap), request_id=request_id, tenant=tenant, sent_s=sent_s)


def _joined_lengths(folder: Path) -> dict[str, dict[str, int]]:
    """Answer lengths by model, by the beginning of the prompt."""
    keys = {row["prompt_id"]: _key(row["prompt"]) for row in _rows(folder / PROMPTS) if row["dataset"].startswith(JOINED)}
    found: dict[str, dict[str, int]] = defaultdict(dict)
    with _opened(folder / LENGTHS) as lines:
        for row in csv.DictReader(lines):
            if row["dataset"].startswith(JOINED) and row["prompt_id"] in keys:
                found[keys[row["prompt_id"]]][row["model"]] = int(row["output_tokens"])
    return dict(found)


def _key(text: str) -> str:
    """Prompts are cut in one of the files, so their beginnings have to do."""
    return text[:KEY_CHARS].strip()


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise TraceError(f"{path}, line {number}: {error}") from error


def _opened(path: Path) -> io.TextIOWrapper:
    try:
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", newline="")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; HMAS_DATA_DIR names the folder of the public data") from error
