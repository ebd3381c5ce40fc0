"""A prompt as the model's inputs, one by one or in batches. Pure; the same code in training and at run time."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agents.perception.reading import PromptView
from agents.perception.text import Vocabulary, excerpt_of

PATCH = 2
"""Words that the model reads as one; sequences are padded to a multiple of it."""
DENSE = (
    "log_chars",
    "log_tokens",
    "tokens_per_char",
    "log_cap",
    "has_cap",
    "has_tools",
    "one_turn",
    "log_turns",
    "images",
    "no_text",
    "log_words",
    "not_ascii",
)
"""What the model knows of a prompt besides its text, each around 0 to 1."""

Inputs = dict[str, npt.NDArray[np.generic]]


class Encoder:
    """Turns prompts into arrays: `words` and `bag` (numbers of a `Vocabulary`, 0 is padding) and `dense`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def parts(self, view: PromptView) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[float]]:
        """Words in order, bag, and dense features of one prompt."""
        text = excerpt_of(view.excerpt)
        ids = self.vocabulary.word_ids(text)
        return self.vocabulary.sequence(ids), self.vocabulary.bag(ids), dense(view, len(ids), text)

    def encode(self, views: Sequence[PromptView]) -> Inputs:
        """Inputs of a batch, padded to its longest prompt."""
        return pad([self.parts(view) for view in views])


def pad(parts: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[float]]]) -> Inputs:
    """Joins what `Encoder.parts` gives for several prompts."""
    length = max(PATCH, *(len(words) for words, _, _ in parts))
    length += -length % PATCH
    width = max(1, *(len(bag) for _, bag, _ in parts))
    words = np.zeros((len(parts), length), dtype=np.int64)
    bags = np.zeros((len(parts), width), dtype=np.int64)
    for row, (ids, bag, _) in enumerate(parts):
        words[row, : len(ids)] = ids
        bags[row, : len(bag)] = bag
    return {"words": words, "bag": bags, "dense": np.array([values for _, _, values in parts], dtype=np.float32)}


def dense(view: PromptView, words: int, text: str) -> list[float]:
    """The values of `DENSE`; sizes as logarithms over ten, so that a hundredfold length is no hundredfold input."""
    chars, tokens, cap = max(0, view.prompt_chars), max(0, view.prompt_tokens), max(0, view.max_output_tokens)
    return [
        math.log1p(chars) / 10.0,
        math.log1p(tokens) / 10.0,
        min(2.0, tokens / (chars + 1.0)),
        math.log1p(cap) / 10.0,
        float(cap > 0),
        float(view.has_tools),
        float(view.turns <= 1),
        math.log1p(min(max(0, view.turns), 1000)) / 3.0,
        min(1.0, max(0, view.images) / 2.0),
        float(not text.strip()),
        math.log1p(words) / 7.0,
        float(not text.isascii()),
    ]
