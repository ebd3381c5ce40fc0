"""Turns the words of a question into numbers for the length model `hmas.agents.perception.lengths.base`. Pure.

It reads only the question: system prompt, history and tools do not belong to one answer more than to another. What they change is learnt
online, by application.

Commands stand at the beginning and at the end of a prompt, so only these parts are read word by word: the cost of a request is bounded for
any length of its prompt.
"""

import math
import re
from itertools import pairwise

import msgspec

from hmas.agents.perception.lengths.demands import demanded_tokens
from hmas.agents.perception.reading import PromptView

HEAD_CHARS = 256
TAIL_CHARS = 176
WORDS = 80
"""Most words and numbers that are read."""
NUMBERS = (
    "log_tokens",
    "log_chars",
    "log_chars_per_token",
    "log_lines",
    "bullets",
    "code",
    "question_mark",
    "other_scripts",
    "demands",
    "log_demand",
    "share_of_words",
    "hidden",
)
"""Names of the numbers beside the words, in order; `hidden` is 1 if the text is not shared."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz'"
_PLAIN = str.maketrans({chr(code): " " for code in range(128) if chr(code) not in _LETTERS} | dict.fromkeys("0123456789", "0"))
_OTHER = re.compile(r"[a-z']+|\d+|[^\x00-\x7f]")


class QuestionFeatures(msgspec.Struct, frozen=True):
    """A question in numbers.

    Attributes:
        words: Words of its beginning and end in order, digits as `0`, at most `WORDS`; characters of other scripts one by one.
        numbers: Values of `NUMBERS`.
    """

    words: list[str]
    numbers: list[float]


def features_of(view: PromptView) -> QuestionFeatures:
    """Reads a question; no content makes it raise."""
    text = view.excerpt
    low = text.lower()
    ask = low if len(low) <= HEAD_CHARS + TAIL_CHARS else f"{low[:HEAD_CHARS]} {low[-TAIL_CHARS:]}"
    plain = ask.isascii()
    words = (ask.translate(_PLAIN).split() if plain else ["0" * len(word) if word.isdecimal() else word for word in _OTHER.findall(ask)])[
        :WORDS
    ]
    demanded = demanded_tokens(low)
    log_tokens = math.log1p(max(view.question_tokens or view.prompt_tokens, 0))
    log_chars = math.log1p(max(view.question_chars or view.prompt_chars, len(text)))
    numbers = [
        log_tokens,
        log_chars,
        log_chars - log_tokens if log_tokens else 0.0,
        math.log1p(text.count("\n")),
        1.0 if "\n- " in text or "\n* " in text or "\n1." in text else 0.0,
        1.0 if "```" in text or "def " in text or "();" in text else 0.0,
        1.0 if text[-3:].rstrip().endswith("?") else 0.0,
        0.0 if plain else 1.0,
        1.0 if demanded else 0.0,
        math.log(demanded) if demanded > 0.0 else 0.0,
        len(words) / WORDS,
        0.0 if text else 1.0,
    ]
    return QuestionFeatures(words, numbers)


def terms(words: list[str]) -> list[str]:
    """Returns distinct words, and pairs of neighbours with a blank between."""
    return list(dict.fromkeys([*words, *(f"{one} {other}" for one, other in pairwise(words))]))
