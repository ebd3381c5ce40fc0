"""The reader that needs no model: the rules of `tagging`. It is perception's fallback and the baseline for models. Pure."""

from collections.abc import Sequence

from hmas.agents.perception.reading import TASKS, PromptView, Reading
from hmas.agents.perception.tagging import tag
from hmas.controller.core.types import TaskType

_PLACE = {task: place for place, task in enumerate(TASKS)}


class RulesReader:
    """Implements `hmas.agents.perception.reading.Reader`. It predicts no lengths, and assigns its doubt to no type."""

    name = "rules"

    def read(self, prompts: Sequence[PromptView]) -> list[Reading]:
        """Reads a batch; see `Reader.read`."""
        return [_reading(prompt) for prompt in prompts]


def _reading(prompt: PromptView) -> Reading:
    found = tag(prompt.excerpt, has_tools=prompt.has_tools, turns=prompt.turns)
    if found.task is TaskType.UNKNOWN:
        return Reading()
    probabilities = [0.0] * len(TASKS)
    probabilities[_PLACE[found.task]] = found.confidence
    return Reading(probabilities=tuple(probabilities))
