"""Maps labels and length bins to the token ids of one tokenizer."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hmas.agents.perception.lm.answers import BIN_WORDS, CLOSING, LETTERS, MIDDLE, NAMES, OPENING
from hmas.controller.core.errors import ConfigError


class LabelTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer in token ids.

    Attributes:
        words: The labels, in the order of `TASKS`.
        labels: Token ids of each label; their first ones differ, so that one step of the model weighs all labels.
        middle: Between label and length bin.
        bins: One token id per length bin.
        closing: After the bin, with the tokenizer's end of text.
        first_texts, bin_texts: Texts of the labels' first tokens and of the bins, for engines that report no ids.
    """

    words: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    middle: tuple[int, ...]
    bins: tuple[int, ...]
    closing: tuple[int, ...]
    first_texts: tuple[str, ...]
    bin_texts: tuple[str, ...]

    @property
    def firsts(self) -> tuple[int, ...]:
        """First token id of each label."""
        return tuple(ids[0] for ids in self.labels)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest answer."""
        return max(len(ids) for ids in self.labels) + len(self.middle) + 1 + len(self.closing)


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
                first_texts=tuple(tokenizer.decode([ids[0]]) for ids in labels),
                bin_texts=BIN_WORDS,
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
