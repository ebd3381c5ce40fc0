"""What a reader makes of prompts: the contract between perception and the models behind it. Pure.

A reader looks at prompts only. What tenants, models and conversations add to that is learnt online
(`hmas.agents.perception.lengths.model`), and what targets follow is policy (`hmas.agents.perception.model`), the same for every reader.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hmas.controller.core.types import TaskType

TASKS: tuple[TaskType, ...] = tuple(task for task in TaskType if task is not TaskType.UNKNOWN)
"""Order of `Reading.probabilities`: the rows of H-MAS Table 6."""


class PromptView(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader may look at.

    Attributes:
        excerpt: Head and tail of what is asked (the last user message, or the prompt), bounded; empty where prompts may not leave the
            gateway, or where there is none. Likewise the two texts after it.
        system: Head of the system prompts.
        history: What was said before the question, newest last.
        prompt_chars, prompt_tokens: Length of everything that is sent.
        question_chars, question_tokens: Length of what is asked, 0 where not known.
        has_tools: Whether tool definitions came along.
        tool_results: Messages that hold what a tool answered.
        wants_json: Whether the answer must be JSON.
        turns: Messages of the conversation, 0 where not known.
        images: Pictures among the content parts.
        max_output_tokens: The client's cap, 0 where none.
        choices: Answers that are asked for.
        context_tokens: Tokens that prompt and answer may have together on the engine, 0 where not known.
    """

    excerpt: str
    system: str = ""
    history: str = ""
    prompt_chars: int = 0
    prompt_tokens: int = 0
    question_chars: int = 0
    question_tokens: int = 0
    has_tools: bool = False
    tool_results: int = 0
    wants_json: bool = False
    turns: int = 0
    images: int = 0
    max_output_tokens: int = 0
    choices: int = 1
    context_tokens: int = 0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader believes.

    Attributes:
        probabilities: Calibrated, in the order of `TASKS`; they sum to 1, or to less where some doubt belongs to none of them. Empty where
            the reader could make nothing of the prompt.
        log_lengths: Quantiles of the natural logarithm of the output length in tokens at `hmas.controller.core.lengths.LEVELS`, for an
            average model; empty where the reader says nothing of lengths.
    """

    probabilities: tuple[float, ...] = ()
    log_lengths: tuple[float, ...] = ()


class Reader(Protocol):
    """A model that reads prompts, on the processor it finds itself on. Not thread-safe; called from one thread at a time.

    Attributes:
        name: Kind and version, as features, metrics and `hmas models list` show it.
    """

    name: str

    def read(self, prompts: Sequence[PromptView]) -> list[Reading]:
        """Reads a batch, in its order. Never raises for what a prompt holds: an unreadable one gives an empty `Reading`."""
        ...
