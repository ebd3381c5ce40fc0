"""SLO targets by task type: H-MAS Table 6 and Eq. 14."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from hmas.controller.core.types import Slo, TaskType

IMPORTANCE_MIN = 0.5
IMPORTANCE_MAX = 1.0
SPREAD = 0.2
"""Alpha of Eq. 14: the targets of one task type lie within 1 - alpha and 1 + alpha of its base."""

BASE_SLO: Mapping[TaskType, Slo] = MappingProxyType(
    {
        TaskType.QA: Slo(ttft_ms=4000, tpot_ms=70),
        TaskType.DIALOGUE: Slo(ttft_ms=4000, tpot_ms=70),
        TaskType.TRANSLATION: Slo(ttft_ms=4500, tpot_ms=80),
        TaskType.EXTRACTION: Slo(ttft_ms=6000, tpot_ms=80),
        TaskType.PARAPHRASING: Slo(ttft_ms=6000, tpot_ms=90),
        TaskType.CODE_GENERATION: Slo(ttft_ms=6000, tpot_ms=90),
        TaskType.INSTRUCTION_FOLLOWING: Slo(ttft_ms=6000, tpot_ms=100),
        TaskType.SUMMARIZATION: Slo(ttft_ms=7000, tpot_ms=110),
        TaskType.LETTER_DRAFTING: Slo(ttft_ms=8000, tpot_ms=120),
        TaskType.MATH_REASONING: Slo(ttft_ms=10000, tpot_ms=130),
        TaskType.ESSAY_GENERATION: Slo(ttft_ms=10000, tpot_ms=130),
        TaskType.LONG_FORM_GENERATION: Slo(ttft_ms=12000, tpot_ms=150),
        TaskType.RESEARCH_AND_COMMUNICATION: Slo(ttft_ms=13000, tpot_ms=150),
        # An unknown request gets the middle of the table: it is neither preferred to known ones nor put behind them.
        TaskType.UNKNOWN: Slo(ttft_ms=6000, tpot_ms=90),
    }
)
"""H-MAS Table 6: base targets per task type, milliseconds and milliseconds per token."""
_TTFT_LEAST_MS, _TTFT_MOST_MS = min(slo.ttft_ms for slo in BASE_SLO.values()), max(slo.ttft_ms for slo in BASE_SLO.values())
_TPOT_LEAST_MS, _TPOT_MOST_MS = min(slo.tpot_ms for slo in BASE_SLO.values()), max(slo.tpot_ms for slo in BASE_SLO.values())


def strictness(importance: float) -> float:
    """The factor f(imp) of Eq. 14: linear in importance and clipped; 1 + alpha at 0.5, 1 - alpha at 1.0."""
    share = (importance - IMPORTANCE_MIN) / (IMPORTANCE_MAX - IMPORTANCE_MIN)
    return 1.0 + SPREAD * (1.0 - 2.0 * min(1.0, max(0.0, share)))


def slo_for(task_type: TaskType, importance: float, scale: float = 1.0) -> Slo:
    """Targets of one request by Eq. 14, rounded down to whole milliseconds.

    Args:
        task_type: Row of Table 6.
        importance: 0.5 (loosest) to 1.0 (strictest); other values are clipped.
        scale: Factor on the whole table for an installation's operating point (E.5: the table is calibrated, not absolute).
    """
    base = BASE_SLO[task_type]
    factor = strictness(importance) * scale
    return Slo(ttft_ms=max(1.0, math.floor(base.ttft_ms * factor)), tpot_ms=max(1.0, math.floor(base.tpot_ms * factor)))


class TargetTable(msgspec.Struct, frozen=True, kw_only=True):
    """The targets of requests that declare none: Table 6 at an installation's operating point.

    Attributes:
        scale: As in `slo_for`.
        ttft_most_ms: Highest TTFT target, in milliseconds. Table 6 allows 4 to 13 s; a client that streams an answer expects its first
            token sooner, for any task.
    """

    scale: float = 1.0
    ttft_most_ms: float = math.inf

    def target(self, task_type: TaskType, importance: float) -> Slo:
        """Targets of one request of this type and importance."""
        slo = slo_for(task_type, importance, self.scale)
        return Slo(ttft_ms=min(self.ttft_most_ms, slo.ttft_ms), tpot_ms=slo.tpot_ms)

    def within(self, slo: Slo) -> Slo:
        """Brings targets into the range that `target` can return over all task types and importances."""
        low, high = (1.0 - SPREAD) * self.scale, (1.0 + SPREAD) * self.scale
        ttft_ms = max(1.0, min(max(slo.ttft_ms, math.floor(low * _TTFT_LEAST_MS)), high * _TTFT_MOST_MS))
        return Slo(
            ttft_ms=min(self.ttft_most_ms, ttft_ms),
            tpot_ms=max(1.0, min(max(slo.tpot_ms, math.floor(low * _TPOT_LEAST_MS)), high * _TPOT_MOST_MS)),
        )
