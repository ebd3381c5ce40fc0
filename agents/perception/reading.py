"""The contract between perception and the models that read prompts. Pure.

A reader looks at prompts only. What tenants, models and conversations add is learnt online (`hmas.agents.perception.lengths.model`), and
the targets that follow are policy (`hmas.agents.perception.model`); both are the same for every reader.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hmas.controller.core.messages import RequestNotice
from hmas.controller.core.types import TaskType

TASKS: tuple[TaskType, ...] = tuple(task for task in TaskType if task is not TaskType.UNKNOWN)
"""Order of `Reading.probabilities`: the rows of H-MAS Table 6."""


class PromptView(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader may look at.

    Attributes:
        excerpt: Head and tail of the question (the last user message, or the prompt), bounded; empty if prompts may not leave the gateway,
            or if there is none. Likewise the two texts after it.
        system: Head of the system prompts.
        history: Messages before the question, newest last.
        prompt_chars, prompt_tokens: Length of everything that is sent.
        question_chars, question_tokens: Length of the question; 0 if not known.
        has_tools: Whether the request has tool definitions.
        tool_results: Messages with the result of a tool.
        wants_json: Whether the answer must be JSON.
        turns: Messages of the conversation; 0 if not known.
        images: Images among the content parts.
        max_output_tokens: The client's cap; 0 for none.
        choices: Requested number of answers.
        context_tokens: Tokens that prompt and answer may have together on the engine; 0 if not known.
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


def view_of(notice: RequestNotice) -> PromptView:
    """What a reader may look at of a request behind a gateway; each field has the same name on both sides."""
    return PromptView(**{name: getattr(notice, name) for name in PromptView.__struct_fields__})


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The reader's result for one prompt.

    Attributes:
        probabilities: Calibrated, in the order of `TASKS`; they sum to 1, or to less if some doubt belongs to none of them. Empty if the
            reader could not read the prompt.
        log_lengths: Quantiles of the natural logarithm of the output length in tokens at `hmas.controller.core.lengths.LEVELS`, for an
            average model; empty if the reader does not predict lengths.
    """

    probabilities: tuple[float, ...] = ()
    log_lengths: tuple[float, ...] = ()


class Reader(Protocol):
    """A model that reads prompts, on the hardware of its process. Not thread-safe; called from one thread at a time.

    Attributes:
        name: Kind and version, as in features, metrics and `hmas models list`.
    """

    name: str

    def read(self, prompts: Sequence[PromptView]) -> list[Reading]:
        """Reads a batch, in its order. No prompt content makes it raise: an unreadable prompt gives an empty `Reading`."""
        ...
