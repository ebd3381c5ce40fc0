"""The groups by which output lengths differ, and how much: from a request's model to the question itself. Pure."""

from collections.abc import Hashable

from hmas.agents.perception.lengths.effects import Level
from hmas.agents.perception.reading import PromptView
from hmas.controller.core.types import TaskType

LEVELS_OF_EFFECTS: tuple[Level, ...] = (
    Level("model", 0.10, 0.002),
    Level("everything", 0.04, 0.001),
    Level("task", 0.04, 0.001),
    Level("model and task", 0.04, 0.002),
    Level("tenant", 0.03, 0.002),
    Level("application", 0.03, 0.002),
    Level("conversation", 0.0, 0.02, of_spread=0.20),
    Level("question", 0.0, 0.003, of_spread=0.45),
)
_OF_SPREAD = tuple(level.of_spread for level in LEVELS_OF_EFFECTS)
NOISE = 0.4
"""Smallest share of the expectation's squared spread that no memory explains: another answer to the same question differs too."""


def groups_of(view: PromptView, task: TaskType, key: str, tenant: str, session: str) -> tuple[Hashable, ...]:
    """Returns the groups of a request, in the order of `LEVELS_OF_EFFECTS`.

    An unknown task has no group of its own. `key` comes from `names.model_key`; the session may be empty.
    """
    text = view.excerpt
    typed = None if task is TaskType.UNKNOWN else task
    applied = view.system or view.has_tools or view.wants_json
    return (
        ("m", key),
        ("",),
        typed and ("t", typed),
        typed and ("mt", key, typed),
        ("n", tenant),
        ("a", tenant, hash(view.system), view.has_tools, view.wants_json) if applied else None,
        ("s", tenant, session) if session else None,
        ("q", hash(text), view.question_chars or view.prompt_chars) if text else None,
    )


def noise_share(groups: tuple[Hashable, ...]) -> float:
    """Returns the share of the expectation's squared spread that belongs to none of a request's groups."""
    return max(NOISE, 1.0 - sum(share for share, group in zip(_OF_SPREAD, groups, strict=True) if group is not None))
