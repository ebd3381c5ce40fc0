"""The question to a causal model about a prompt, and the format of its answer: plain text in, one line of strict JSON out. Pure.

    {"task": "Summarization", "output_tokens": "f"}

The text ends where the label begins, so one step of the model weighs all 13 labels against each other. The confidence comes from these
weights, never from a statement of the model about itself. Training, the reader in process and the reader over HTTP all use these functions,
so what is served is what was trained.
"""

import math
import string
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.lm.bins import BINS, log_quantiles
from hmas.agents.perception.reading import TASKS, PromptView, Reading

OPENING = '{"task": "'
MIDDLE = '", "output_tokens": "'
CLOSING = '"}'
BIN_WORDS: tuple[str, ...] = tuple(string.ascii_lowercase[:BINS])
"""Names of the length bins: single letters are single tokens in all examined tokenizers."""
NAMES: tuple[str, ...] = tuple(task.value for task in TASKS)
LETTERS: tuple[str, ...] = tuple(string.ascii_uppercase[: len(TASKS)])
"""Labels for tokenizers in which two of `NAMES` begin with the same token, in the order of `TASKS`."""
EXCERPT_CHARS = 1200
HEAD_SHARE = 0.6
"""Share of a cut excerpt that comes from its beginning: commands stand at the beginning or at the end, more often at the beginning."""
CUT = "\n...\n"

_ASK = "Which task does the text between the lines ask for, and how long will the answer be?\n----\n"


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    task: str
    output_tokens: str


def cut(text: str, limit: int) -> str:
    """Returns head and tail of a text, at most `limit` characters and a separator, without lone surrogates, which no tokenizer takes."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    head = int(limit * HEAD_SHARE)
    return text[:head] + CUT + text[len(text) - (limit - head) :]


def facts(view: PromptView) -> str:
    """Returns what is known of a prompt besides its text, in one line. It leaves out caps, which only the length model needs."""
    chars = view.question_chars or view.prompt_chars
    return f"{chars} characters, {view.turns} messages, {view.images} images, {'tools' if view.has_tools else 'no tools'}"


def question(view: PromptView, excerpt_chars: int = EXCERPT_CHARS) -> str:
    """Returns the text whose continuation is the label, the length bin and the end of the JSON object."""
    before, after = question_parts(view)
    return before + cut(view.excerpt, excerpt_chars) + after


def question_parts(view: PromptView) -> tuple[str, str]:
    """Returns the text before and after the excerpt."""
    return _ASK, f"\n----\n{facts(view)}\n{OPENING}"


def pattern(labels: Sequence[str]) -> str:
    """Returns the regular expression of a continuation, for engines with guided decoding."""
    return f'({"|".join(labels)})", "output_tokens": "[{BIN_WORDS[0]}-{BIN_WORDS[-1]}]"\\}}'


def parse(continuation: str, labels: Sequence[str]) -> tuple[int, int] | None:
    """Returns label and bin of a continuation as indices; None if it is not exactly the expected JSON."""
    try:
        answer = msgspec.json.decode(OPENING + continuation, type=_Answer)
        return labels.index(answer.task), BIN_WORDS.index(answer.output_tokens)
    except (msgspec.DecodeError, ValueError):
        return None


def softened(log_probabilities: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Returns probabilities that sum to 1 from log-probabilities or logits of some choices, at a temperature (1: unchanged)."""
    scaled = log_probabilities / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def reading_of(
    labels: NDArray[np.float64], lengths: NDArray[np.float64] | None, *, task_temperature: float, length_temperature: float
) -> Reading:
    """Builds a reading from the log-probabilities (or logits) of the labels and, if there are any, of the length bins.

    The reading is empty if a number is missing: half an answer counts as none (H-MAS 3.2).
    """
    if labels.shape != (len(TASKS),) or not math.isfinite(labels.sum()):
        return Reading()
    log_lengths: tuple[float, ...] = ()
    if lengths is not None:
        if lengths.shape != (BINS,) or not math.isfinite(lengths.sum()):
            return Reading()
        log_lengths = log_quantiles(softened(lengths, length_temperature))
    return Reading(probabilities=tuple(float(p) for p in softened(labels, task_temperature)), log_lengths=log_lengths)
