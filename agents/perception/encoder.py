"""A prompt as the model's inputs, one by one or in batches. Pure; the same code in training and at run time."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hmas.agents.model_store.ranges import RangeCounter
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.text import Ids, Vocabulary, excerpt_of

PATCH = 2
"""Words that the model reads as one; sequences are padded to a multiple of it."""
DENSE = (
    "log_chars",
    "log_tokens",
    "tokens_per_char",
    "log_turns",
    "no_text",
    "log_words",
    "not_ascii",
)
"""What the model knows of a prompt besides its texts, each around 0 to 1: sizes of the question, messages of the conversation.

Whether tools, pictures, a cap or a JSON schema came along is not among them: the public prompts have none, so that their weights would be
those of chance.
"""

Inputs = dict[str, npt.NDArray[np.generic]]


class Parts(NamedTuple):
    """One prompt as numbers.

    Attributes:
        words: Words of the question in order.
        bag: Features of the question.
        system: Features of the system prompt's head.
        history: Features of what was said before.
        dense: Values of `DENSE`.
    """

    words: Ids
    bag: Ids
    system: Ids
    history: Ids
    dense: list[float]


class Encoder:
    """Turns prompts into arrays: `words`, `bag`, `system`, `history` (numbers of a `Vocabulary`, 0 is padding) and `dense`.

    Args:
        vocabulary: Numbers for words and features.
        ranges: Clips the dense values and counts what lies outside; None in training, which finds the ranges.
    """

    def __init__(self, vocabulary: Vocabulary, ranges: RangeCounter | None = None) -> None:
        self.vocabulary = vocabulary
        self.ranges = ranges

    def parts(self, view: PromptView) -> Parts:
        """One prompt as numbers."""
        text = excerpt_of(view.excerpt)
        vocabulary = self.vocabulary
        ids = vocabulary.word_ids(text)
        values = dense(view, len(ids), text)
        return Parts(
            vocabulary.sequence(ids),
            vocabulary.bag(ids),
            vocabulary.bag(vocabulary.word_ids(view.system)),
            vocabulary.bag(vocabulary.word_ids(view.history)),
            values if self.ranges is None else self.ranges.clip(values),
        )

    def encode(self, views: Sequence[PromptView]) -> Inputs:
        """Inputs of a batch, padded to its longest prompt."""
        return pad([self.parts(view) for view in views])


def pad(parts: Sequence[Parts]) -> Inputs:
    """Joins what `Encoder.parts` gives for several prompts."""
    length = max(PATCH, *(len(one.words) for one in parts))
    return {
        "words": _padded([one.words for one in parts], length + -length % PATCH),
        "bag": _padded([one.bag for one in parts]),
        "system": _padded([one.system for one in parts]),
        "history": _padded([one.history for one in parts]),
        "dense": np.array([one.dense for one in parts], dtype=np.float32),
    }


def _padded(rows: Sequence[Ids], width: int = 0) -> Ids:
    found = np.zeros((len(rows), width or max(1, *map(len, rows))), dtype=np.int64)
    for row, ids in enumerate(rows):
        found[row, : len(ids)] = ids
    return found


def dense(view: PromptView, words: int, text: str) -> list[float]:
    """The values of `DENSE`; sizes as logarithms over ten, so that a hundredfold length is no hundredfold input.

    Where the size of the question is not known (a prompt of token ids, a gateway of an earlier version) the whole prompt's stands for it.
    """
    chars = max(0, view.question_chars or view.prompt_chars)
    tokens = max(0, view.question_tokens or view.prompt_tokens)
    return [
        math.log1p(chars) / 10.0,
        math.log1p(tokens) / 10.0,
        min(2.0, tokens / (chars + 1.0)),
        math.log1p(max(0, view.turns)) / 3.0,
        float(not text.strip()),
        math.log1p(words) / 7.0,
        float(not text.isascii()),
    ]
