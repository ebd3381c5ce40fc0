"""Typed prompts from files: rows with their label, source and licence, as the gateway would show them to perception."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from hmas.agents.perception.reading import TASKS, PromptView, view_of
from hmas.controller.core.client_bodies import Shape, client_body
from hmas.controller.core.client_systems import Draws
from hmas.controller.core.errors import ModelError
from hmas.controller.core.notices import notice_of
from hmas.controller.core.request_body import read_call
from hmas.controller.core.types import TaskType
from hmas.engines.tokens import estimate_tokens

ANY_MODEL = "any"
"""What the bodies of training prompts name; no reader looks at it."""
GENERATED = "generated"
"""Source of prompts that a grammar made (`hmas-lab training-data`): they are mixed into the training and are in no other part."""
PERMISSIVE = ("MIT", "Apache-2.0", "CC-BY-4.0", "CC-BY-3.0", "CC-BY-SA", "CC0", "free for any purpose")
"""How licences begin that let a model which learnt from a row be passed on; CC-BY-SA with attribution, which the model card carries."""

_LABELS = {task.value: task for task in TASKS}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled prompt.

    Attributes:
        prompt: The text, whole or cut at its source.
        task: Its label.
        source: Where it comes from; `generated` where a grammar made it.
        rule: What labelled it: a template, a category, a dataset.
        licence: Licence under which it may be trained on, None where it may not.
        prompt_chars: Length of the whole prompt.
        output_tokens: Length of a model's answer, 0 where there is none: human references are shorter than what models write.
        lengths: Output lengths of several models on this prompt, where they are known.
        has_tools, turns, images: As in `PromptView`.
    """

    prompt: str
    task: TaskType
    source: str
    rule: str = ""
    licence: str | None = None
    prompt_chars: int = 0
    output_tokens: int = 0
    lengths: tuple[int, ...] = ()
    has_tools: bool = False
    turns: int = 1
    images: int = 0

    @property
    def label(self) -> int:
        """Place of the label in `TASKS`."""
        return TASKS.index(self.task)

    def view(
        self,
        shape: Shape | None = None,
        *,
        features_only: bool = False,
        rng: Draws | None = None,
        exchanges: Sequence[tuple[str, str]] = (),
        holdout: bool = False,
    ) -> PromptView:
        """What a reader sees of it when a client sends it in this shape, by way of a real body; see `view_of_prompt`.

        Args:
            shape: A chat of one message by default, with tools or a picture where the row has them.
            features_only: As where prompts stay in the gateway: without any text.
            rng: Where chance comes from.
            exchanges: For histories, oldest first.
            holdout: Whether system prompts are those kept for judging.
        """
        if shape is None:
            shape = Shape.TOOLS if self.has_tools else Shape.PICTURE if self.images else Shape.CHAT
        view = view_of_prompt(self.prompt, shape, rng=rng, exchanges=exchanges, holdout=holdout, share_prompts=not features_only)
        cut = max(0, self.prompt_chars - len(self.prompt))
        if cut:
            # The source kept a part of the prompt and its whole length.
            more = estimate_tokens(self.prompt) * cut // max(1, len(self.prompt))
            view = msgspec.structs.replace(
                view,
                prompt_chars=view.prompt_chars + cut,
                prompt_tokens=view.prompt_tokens + more,
                question_chars=view.question_chars + cut,
                question_tokens=view.question_tokens + more,
            )
        return view if self.turns == 1 else msgspec.structs.replace(view, turns=self.turns)


def view_of_prompt(
    prompt: str,
    shape: Shape = Shape.CHAT,
    *,
    rng: Draws | None = None,
    exchanges: Sequence[tuple[str, str]] = (),
    max_tokens: int | None = None,
    holdout: bool = False,
    share_prompts: bool = True,
) -> PromptView:
    """What a reader sees of a prompt that a client sends in this shape: a real body, read as the gateway reads it.

    Args:
        prompt: What is asked.
        shape: What comes along with it.
        exchanges: As in `hmas.controller.core.client_bodies.client_body`.
        max_tokens: The client's cap.
        holdout: Whether system prompts are those kept for judging.
        rng: Where chance comes from; without one it is drawn from prompt and shape, so that the same prompt gives the same view.
        share_prompts: False leaves every text empty.
    """
    chance = np.random.default_rng(crc32(f"{shape}:{prompt}".encode("utf-8", "replace"))) if rng is None else rng
    path, document = client_body(shape, prompt, model=ANY_MODEL, rng=chance, exchanges=exchanges, max_tokens=max_tokens, holdout=holdout)
    return view_of_body(path, document, share_prompts=share_prompts)


def view_of_body(path: str, document: dict[str, Any], *, share_prompts: bool = True) -> PromptView:
    """What a reader would see of a request with this JSON body behind a gateway; every text is empty unless it shares prompts.

    Raises:
        BodyError: The gateway would refuse the body; names the field, its value and what is allowed.
    """
    return view_of(notice_of(read_call(path, document), share_prompts=share_prompts))


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """Reads files of typed prompts: one JSON object a line with at least `prompt` and `task_type`, plain or gzipped.

    Raises:
        ModelError: A file that is not there, or a row that cannot be used; names file, line and field.
    """
    rows = [_row(document, path, number) for path in paths for number, document in documents(path)]
    if not rows:
        raise ModelError(f"no typed prompts in {', '.join(map(str, paths)) or 'no file'}")
    return rows


def documents(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file with their line numbers.

    Raises:
        ModelError: The file is not there, is not text, or a line is no JSON object.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                document = json.loads(line)
                if not isinstance(document, dict):
                    raise ModelError(f"{path}:{number}: must be a JSON object")
                yield number, document
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}: not JSON lines: {error}") from None
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


def licence_for_training(declared: str) -> str | None:
    """Returns the declared licence if a row under it may be trained on, else None: non-commercial, research-only, or none declared."""
    if "NC" in declared.replace("-", " ").split() or "research" in declared.lower():
        return None
    return declared if declared.startswith(PERMISSIVE) else None


def _row(document: dict[str, Any], path: Path, number: int) -> Row:
    prompt, label = document.get("prompt"), document.get("task_type")
    if not isinstance(prompt, str):
        raise ModelError(f"{path}:{number}: prompt: {prompt!r} must be a text")
    if not isinstance(label, str) or label not in _LABELS:
        raise ModelError(f"{path}:{number}: task_type: {label!r} must be one of {', '.join(_LABELS)}")
    source, rule = str(document.get("source", path.name)), str(document.get("label_rule", ""))
    from_model = str(document.get("output_origin", "")).startswith("llm")
    return Row(
        prompt=prompt,
        task=_LABELS[label],
        source=source,
        rule=rule,
        licence=licence_for_training(str(document.get("license") or "")),
        prompt_chars=_count(document, "prompt_chars", path, number) or len(prompt),
        output_tokens=_count(document, "output_tokens", path, number) if from_model else 0,
        has_tools=bool(document.get("has_tools", False)),
        turns=1 if document.get("turns") is None else _count(document, "turns", path, number),
        images=_count(document, "images", path, number),
        lengths=_lengths(document, path, number),
    )


def _count(document: dict[str, Any], name: str, path: Path, number: int) -> int:
    value = document.get(name)
    if value is None:
        return 0
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise ModelError(f"{path}:{number}: {name}: {value!r} must be a number of 0 or more")
    return int(value)


def _lengths(document: dict[str, Any], path: Path, number: int) -> tuple[int, ...]:
    found = document.get("lengths", [])
    if not isinstance(found, list) or not all(type(tokens) is int and tokens > 0 for tokens in found):
        raise ModelError(f"{path}:{number}: lengths: {found!r} must be a list of whole numbers of 1 or more")
    return tuple(found)
