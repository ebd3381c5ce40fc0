"""What meta's model returns: decisions, work that a decision waits for, and the texts of a decision. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hmas.controller.core.messages import CandidateOutlook, DecisionOutcome, MetaDecision

Decisions = list[MetaDecision | DecisionOutcome]
Then = Callable[[Any, float], Decisions]
"""Turns a result, or an error text, at a given time into decisions."""


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Work that a decision waits for.

    Attributes:
        compute: The slow part; it may run anywhere.
        finish: The fast part; takes the result and the time.
        failed: Replaces `finish` if `compute` raised; takes the error text and the time.
        asked_s: When the work was requested.
    """

    compute: Callable[[], Any]
    finish: Then
    failed: Then
    asked_s: float


@dataclass(frozen=True, slots=True)
class DecisionText:
    """The parts of a decision beside the policy: the reason, the source that set it, and the evidence."""

    reason: str
    source: str = "rules"
    evidence: Mapping[str, float] | None = None
    confidence: float = 1.0
    candidates: Sequence[CandidateOutlook] = ()
