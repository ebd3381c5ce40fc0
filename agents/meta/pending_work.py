"""What meta's model hands out: decisions, work that a decision waits for, and the words that stand in a decision. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hmas.controller.core.messages import CandidateOutlook, DecisionOutcome, MetaDecision

Decisions = list[MetaDecision | DecisionOutcome]
Then = Callable[[Any, float], Decisions]
"""What follows from a result, or from an error in words, at a moment."""


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Work that a decision waits for.

    Attributes:
        compute: The long half; runs wherever.
        finish: The short half, with the result and the time.
        failed: Instead of it where `compute` raised: the error in words, and the time.
        asked_s: When it was asked.
    """

    compute: Callable[[], Any]
    finish: Then
    failed: Then
    asked_s: float


@dataclass(frozen=True, slots=True)
class DecisionText:
    """What stands in a decision beside the policy: why, on whose word, on what grounds."""

    reason: str
    source: str = "rules"
    evidence: Mapping[str, float] | None = None
    confidence: float = 1.0
    candidates: Sequence[CandidateOutlook] = ()
