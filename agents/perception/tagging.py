"""Derives the task type of a prompt from its text: a weighted vote of the rules in `cues`. Pure, deterministic, no model.

`RulesReader` is perception's fallback and the baseline for models.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hmas.agents.perception.cues import CUES, NUMBER_WORDS, Where
from hmas.agents.perception.reading import TASKS, PromptView, Reading
from hmas.controller.core.types import TaskType

EDGE_CHARS = 280
"""Length of the beginning and of the end in which commands are searched."""
DOUBT = 1.5
"""Weight of not knowing: with a single weak sign the tag stays doubtful, with a single command it does not."""
MANY_TURNS = 3
_PLACE = {task: place for place, task in enumerate(TASKS)}

_WORD = re.compile(r"[^\W_][\w+#&'-]*")


@dataclass(frozen=True, slots=True)
class Tag:
    """The rules' result.

    Attributes:
        task: The task type with the highest score; `unknown` if nothing was found.
        confidence: 0 to 1: its score relative to the runner-up's and to doubt.
    """

    task: TaskType
    confidence: float


@dataclass(frozen=True, slots=True)
class _Rule:
    task: TaskType
    weight: float
    where: Where
    words: frozenset[str]
    pattern: re.Pattern[str] | None
    numbers: int
    other_scripts: bool


_RULES = tuple(
    _Rule(
        cue.task,
        cue.weight,
        cue.where,
        frozenset(cue.words.split()),
        re.compile(cue.pattern) if cue.pattern else None,
        cue.numbers,
        cue.other_scripts,
    )
    for cue in CUES
)

_NUMBERS = frozenset(NUMBER_WORDS.split())


def tag(text: str, *, has_tools: bool = False, turns: int = 0) -> Tag:
    """Tags a prompt.

    Args:
        text: Excerpt of the prompt, of bounded length; empty if prompts are not shared.
        has_tools: Whether the request has tool definitions.
        turns: Messages of the conversation; 0 if not known.
    """
    scores = score(text)
    if turns >= MANY_TURNS:
        scores[TaskType.DIALOGUE] = scores.get(TaskType.DIALOGUE, 0.0) + 2.0
    if has_tools:
        scores[TaskType.DIALOGUE] = scores.get(TaskType.DIALOGUE, 0.0) + 1.0
    # Ties go to the type that was scored first, which is the order of the table.
    ordered = sorted(scores.items(), key=lambda item: -item[1])
    if not ordered:
        return Tag(TaskType.UNKNOWN, 0.0)
    best = ordered[0][1]
    second = ordered[1][1] if len(ordered) > 1 else 0.0
    return Tag(ordered[0][0], best / (best + second + DOUBT))


def score(text: str) -> dict[TaskType, float]:
    """Returns a score per task type with a match: its strongest rule, and half of every other one.

    A repeated command is still one command; without the discount a long text would outvote a short one.
    """
    text = text.lower()
    opening, closing = text[:EDGE_CHARS], text[-EDGE_CHARS:]
    ask = text if len(text) <= 2 * EDGE_CHARS else f"{opening}\n{closing}"
    parts = {Where.OPEN: opening, Where.CLOSE: closing, Where.ASK: ask, Where.ANY: text}
    found = {where: _WORD.findall(part) for where, part in parts.items()}
    words = {where: frozenset(part) for where, part in found.items()}
    numbers = sum(word[0].isdigit() or word in _NUMBERS for word in found[Where.ANY])
    latin = text.isascii()
    best: dict[TaskType, float] = {}
    total: dict[TaskType, float] = {}
    for rule in _RULES:
        if rule.words and rule.words.isdisjoint(words[rule.where]):
            continue
        if rule.numbers > numbers or (rule.other_scripts and latin):
            continue
        if rule.pattern is None or rule.pattern.search(parts[rule.where]):
            best[rule.task] = max(best.get(rule.task, 0.0), rule.weight)
            total[rule.task] = total.get(rule.task, 0.0) + rule.weight
    return {task: (best[task] + total[task]) / 2.0 for task in best}


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
