"""Output lengths by task type, used before an installation has its own history. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from hmas.controller.core.types import TaskType


class Length(msgspec.Struct, frozen=True):
    """Quantiles of the output length in tokens."""

    p50: float
    p90: float


PRIOR: Mapping[TaskType, Length] = MappingProxyType(
    {
        TaskType.QA: Length(250, 900),
        TaskType.DIALOGUE: Length(90, 200),
        TaskType.TRANSLATION: Length(95, 300),
        TaskType.EXTRACTION: Length(60, 300),
        TaskType.PARAPHRASING: Length(150, 800),
        TaskType.CODE_GENERATION: Length(200, 1600),
        TaskType.INSTRUCTION_FOLLOWING: Length(155, 550),
        TaskType.SUMMARIZATION: Length(130, 350),
        TaskType.LETTER_DRAFTING: Length(180, 350),
        TaskType.MATH_REASONING: Length(130, 650),
        TaskType.ESSAY_GENERATION: Length(900, 2300),
        TaskType.LONG_FORM_GENERATION: Length(1200, 4500),
        TaskType.RESEARCH_AND_COMMUNICATION: Length(200, 600),
        TaskType.UNKNOWN: Length(160, 900),
    }
)
"""Lengths of language models' answers to public prompts of each type (rounded), used until an installation has its own history."""
