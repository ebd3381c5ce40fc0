"""The question to a causal model about a prompt, and the format of its answer: plain text in, one line of strict JSON out. Pure.

    {"task": "Summarization", "output_tokens": "f"}

The text ends where the label begins, so one step of the model weighs all 13 labels against each other. The confidence comes from these
weights, never from a statement of the model about itself. Training, the reader in process and the reader over HTTP all use these functions,
so what is served is what was trained.

Output lengths fall into bins, so that a model that picks tokens can give a whole distribution. The bins are equally wide in the logarithm
of the length: an error of 20 tokens matters at 10 tokens and not at 2,000.
"""

import math
import string
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.perception.reading import TASKS, PromptView, Reading
from hmas.controller.core.lengths import LEVELS

BINS = 20
"""Engines return the 20 likeliest tokens of a step unless started otherwise (vLLM: --max-logprobs), so more bins would be incomplete."""
LONGEST_TOKENS = 40_000
"""Upper end of the last bin; longer answers count as this long."""
LOG_EDGES: NDArray[np.float64] = np.linspace(0.0, math.log(LONGEST_TOKENS), BINS + 1)
"""Edges in natural logarithms of tokens; bin i is [edge i, edge i+1), a factor of 1.7 wide."""

_LEAST_SHARE = 1e-6
"""Smallest probability of a bin, so that quantiles never jump across bins that the model left out."""

OPENING = '{"task": "'
MIDDLE = '", "output_tokens": "'
CLOSING = '"}'
BIN_WORDS: tuple[str, ...] = tuple(string.ascii_lowercase[:BINS])
"""Names of the length bins: single letters are single tokens in all examined tokenizers."""
NAMES: tuple[str, ...] = tuple(task.value for task in TASKS)
LETTERS: tuple[str, ...] = tuple(string.ascii_uppercase[: len(TASKS)])
"""Labels for tokenizers in which two of `NAMES` begin with the same token, in the order of `TASKS`."""
EXCERPT_CHARS = 1200
SIDE_CHARS = 300
"""Characters of the system prompt's beginning, and of the history's end, that stand before the question."""
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


def beside(view: PromptView, side_chars: int) -> str:
    """Returns system prompt and history, shortened, one paragraph each; empty where there is neither."""
    sides = (("System prompt", view.system[:side_chars]), ("Said before", view.history[-side_chars:]))
    return "".join(f"{name}: {cut(text.strip(), side_chars)}\n" for name, text in sides if text.strip()) if side_chars else ""


def question(view: PromptView, excerpt_chars: int = EXCERPT_CHARS, side_chars: int = SIDE_CHARS) -> str:
    """Returns the text whose continuation is the label, the length bin and the end of the JSON object."""
    return f"{beside(view, side_chars)}{_ASK}{cut(view.excerpt, excerpt_chars)}\n----\n{facts(view)}\n{OPENING}"


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


def bin_of(tokens: int) -> int:
    """Returns the bin of a length in tokens, 0 to `BINS` - 1.

    Raises:
        ValueError: The length is below 1.
    """
    if tokens < 1:
        raise ValueError(f"output_tokens is {tokens}; allowed: 1 or more")
    return min(BINS - 1, int(np.searchsorted(LOG_EDGES, math.log(tokens), side="right")) - 1)


def log_quantiles(probabilities: NDArray[np.float64] | Sequence[float]) -> tuple[float, ...]:
    """Returns quantiles of the log length at `LEVELS` from the probabilities of the bins; within a bin the log length is uniform.

    Args:
        probabilities: One per bin, not negative; they need not sum to 1.

    Raises:
        ValueError: Their number is not `BINS`, one is negative or not finite, or all are 0.
    """
    given = np.asarray(probabilities, dtype=np.float64)
    if given.shape != (BINS,) or not np.isfinite(given).all() or (given < 0).any() or given.sum() <= 0:
        raise ValueError(f"bin probabilities {given!r}; allowed: {BINS} finite numbers of 0 or more, not all 0")
    share = np.maximum(given / given.sum(), _LEAST_SHARE)
    reached = np.concatenate(([0.0], np.cumsum(share / share.sum())))
    return tuple(float(value) for value in np.interp(LEVELS, reached, LOG_EDGES))
