"""What the words of a prompt say about the length of its answer, as numbers for `agents.perception.length_net`. Pure.

Commands stand at the beginning and at the end of a prompt, so only these are read word by word: the cost of a request is bounded whatever
the length of its prompt.
"""

import math
import re
from itertools import pairwise

import msgspec

from agents.perception.length_demands import demanded_tokens
from agents.perception.reading import PromptView

HEAD_CHARS = 320
TAIL_CHARS = 240
WORDS = 120
"""Words, numbers and marks read at most."""
DENSE = (
    "log_tokens",
    "log_chars",
    "log_chars_per_token",
    "log_lines",
    "bullets",
    "code",
    "question",
    "other_scripts",
    "tools",
    "log_turns",
    "images",
    "demands",
    "log_demand",
    "ask_words",
    "hidden",
)
"""Names of the numbers beside the words, in order; `hidden` is 1 where the text is not shared."""

_TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[^\x00-\x7f]|```|[?:]")
_UNITS = ("word", "sentence", "paragraph", "page")


class PromptFeatures(msgspec.Struct, frozen=True):
    """A prompt in numbers.

    Attributes:
        words: Words of its beginning and end in order, digits as `0`, at most `WORDS`.
        dense: Values of `DENSE`.
    """

    words: list[str]
    dense: list[float]


def features_of(view: PromptView) -> PromptFeatures:
    """Reads a prompt; never raises for what it holds."""
    text = view.excerpt
    low = text.lower()
    ask = low if len(low) <= HEAD_CHARS + TAIL_CHARS else f"{low[:HEAD_CHARS]} \n {low[-TAIL_CHARS:]}"
    words = ["0" if word[0].isdigit() else word for word in _TOKEN.findall(ask)[:WORDS]]
    demanded = demanded_tokens(low) if any(unit in low for unit in _UNITS) else 0.0
    lines = text.count("\n")
    tokens, chars = max(view.prompt_tokens, 0), max(view.prompt_chars, len(text))
    dense = [
        math.log1p(tokens),
        math.log1p(chars),
        math.log1p(chars) - math.log1p(tokens) if tokens else 0.0,
        math.log1p(lines),
        1.0 if "\n- " in text or "\n* " in text or "\n1." in text else 0.0,
        1.0 if "```" in text or "def " in text or "();" in text else 0.0,
        1.0 if text.rstrip().endswith("?") else 0.0,
        0.0 if text.isascii() else 1.0,
        1.0 if view.has_tools else 0.0,
        math.log1p(max(view.turns, 0)),
        float(min(max(view.images, 0), 4)),
        1.0 if demanded else 0.0,
        math.log(demanded) if demanded > 0 else 0.0,
        len(words) / WORDS,
        0.0 if text else 1.0,
    ]
    return PromptFeatures(words, dense)


def terms(words: list[str]) -> list[str]:
    """Words and pairs of neighbours: what the vocabulary is made of."""
    return [*words, *(f"{one} {other}" for one, other in pairwise(words))]
