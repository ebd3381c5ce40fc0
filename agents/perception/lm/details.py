"""How a language model's artefact is asked and read: the details on its card, and the answer in the token ids of one tokenizer."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hmas.agents.model_store.card import ModelCard
from hmas.agents.perception.lm.answers import BIN_WORDS, CLOSING, LETTERS, MIDDLE, NAMES, OPENING
from hmas.agents.perception.reading import TASKS
from hmas.controller.core.errors import ConfigError, ModelError

FORMAT = "transformers"
"""`ModelCard.format` of these artefacts."""
ADAPTER = "adapter"
MERGED = "merged"
"""Folders of the weights inside an artefact; each artefact has one of the two."""


class LabelTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer in token ids.

    Attributes:
        words: The labels, in the order of `TASKS`.
        labels: Token ids of each label; their first ones differ, so that one step of the model weighs all labels.
        middle: Between label and length bin.
        bins: One token id per length bin.
        closing: After the bin, with the tokenizer's end of text.
    """

    words: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    middle: tuple[int, ...]
    bins: tuple[int, ...]
    closing: tuple[int, ...]

    @property
    def firsts(self) -> tuple[int, ...]:
        """First token id of each label."""
        return tuple(ids[0] for ids in self.labels)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest answer."""
        return max(len(ids) for ids in self.labels) + len(self.middle) + 1 + len(self.closing)


class LmDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The card's `details`.

    Attributes:
        kind: `causal` or `encoder`.
        weights: `adapter` (needs the base) or `merged` (complete).
        base: Folder of the base during training.
        base_fingerprint: Result of `bases.fingerprint`; empty for merged weights.
        tasks: Order of the labels.
        bins: Names of the length bins.
        excerpt_chars, side_chars, max_tokens: How much the model sees of the question, of system prompt and history, and of all together.
        tokens: The answer in token ids; None for an encoder.
        task_temperature, length_temperature: Divisors of the logits that calibrate the confidence, fitted on the validation rows.
        rank: Rank of the adapter.
    """

    kind: str
    weights: str
    base: str
    base_fingerprint: str = ""
    tasks: tuple[str, ...] = tuple(task.value for task in TASKS)
    bins: tuple[str, ...] = BIN_WORDS
    excerpt_chars: int
    side_chars: int = 0
    max_tokens: int
    tokens: LabelTokens | None = None
    task_temperature: float = 1.0
    length_temperature: float = 1.0
    rank: int = 0


def details_of(card: ModelCard) -> LmDetails:
    """Returns the details of a card of this format.

    Raises:
        ModelError: The card has another format, lacks a field, or was made for other task types.
    """
    if card.format != FORMAT:
        raise ModelError(f"card.format is {card.format!r}; allowed here: {FORMAT!r}")
    try:
        details = msgspec.convert(card.details, LmDetails)
    except msgspec.ValidationError as error:
        raise ModelError(f"card.details: {error}") from error
    if details.tasks != tuple(task.value for task in TASKS) or details.bins != BIN_WORDS:
        raise ModelError(f"card.details.tasks is {', '.join(details.tasks)}; allowed: {', '.join(TASKS)}")
    if (details.kind == "causal") is not (details.tokens is not None):
        raise ModelError(f"card.details.kind is {details.kind!r} and tokens are {'missing' if details.tokens is None else 'there'}")
    return details


def label_tokens(tokenizer: Any) -> LabelTokens:
    """Uses the tasks' names as labels if their first tokens differ, else single letters.

    Raises:
        ConfigError: Not even single letters are separate tokens.
    """
    for words in (NAMES, LETTERS):
        labels = [_continued(tokenizer, OPENING, word) for word in words]
        middle = _continued(tokenizer, OPENING + words[0], MIDDLE)
        bins = [_continued(tokenizer, OPENING + words[0] + MIDDLE, word) for word in BIN_WORDS]
        if all(map(len, labels)) and all(len(ids) == 1 for ids in bins) and _differ(labels) and _differ(bins):
            closing = _continued(tokenizer, OPENING + words[0] + MIDDLE + BIN_WORDS[0], CLOSING)
            return LabelTokens(
                words=tuple(words),
                labels=tuple(labels),
                middle=middle,
                bins=tuple(ids[0] for ids in bins),
                closing=(*closing, *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])),
            )
    raise ConfigError(
        "the base's tokenizer has no tokens of their own for single letters; allowed: one that has, as all byte-level BPE has"
    )


def _differ(choices: Sequence[tuple[int, ...]]) -> bool:
    return len({ids[0] for ids in choices}) == len(choices)


def _continued(tokenizer: Any, before: str, text: str) -> tuple[int, ...]:
    """Returns the ids of `text` after `before`: some tokenizers put a space in front of separate text."""
    start = tokenizer(before, add_special_tokens=False)["input_ids"]
    whole = tokenizer(before + text, add_special_tokens=False)["input_ids"]
    if whole[: len(start)] == start:
        return tuple(whole[len(start) :])
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
