"""What every selector is asked and answers (H-MAS C.1, C.2). Pure.

A selector proposes; it decides nothing. What it says goes through the guards (whitelist, dwell, agreement, budget of switches) and, where
a twin is there, past its judgement. So a selector may be wrong, slow, or hostile, and cost no more than its own worth.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from hmas.agents.meta.candidate import Candidate
from hmas.controller.core.messages import CandidateOutlook, LongView


@dataclass(frozen=True, slots=True)
class Situation:
    """What a selector goes by.

    Attributes:
        view: The newest long view.
        current: In force. `since_s`: since when.
        start: Configured: where meta begins and returns to.
        allowed: Policies that may be proposed: the pool without those that were rolled back lately, in alphabetical order.
        anomalies: Contradictions in the newest telemetry, empty in health.
    """

    view: LongView
    current: Candidate
    start: Candidate
    allowed: tuple[str, ...]
    since_s: float
    now_s: float
    anomalies: tuple[str, ...] = ()


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a selector wants in force.

    Attributes:
        reason: Why, in words with figures.
        source: The selector's name, or that of the one that stood in for it.
        bypass: Whether it asks for the emergency bypass; it is only followed where telemetry contradicts itself.
        confidence: What it gives its own word, 0 to 1.
        evidence: Figures it stands on.
        candidates: What it looked at and expects of each, best first.
    """

    candidate: Candidate
    reason: str
    source: str
    bypass: bool = False
    confidence: float = 1.0
    evidence: Mapping[str, float] = {}
    candidates: tuple[CandidateOutlook, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """A proposal that takes a while.

    Attributes:
        compute: The long half: a plain function that touches nothing that the selector's other methods touch. It may run in a thread.
        finish: The short half: makes the proposal of what `compute` returned.
        failed: Makes one of an error that `compute` raised, in words.
    """

    compute: Callable[[], Any]
    finish: Callable[[Any], Proposal]
    failed: Callable[[str], Proposal]


@dataclass(frozen=True, slots=True)
class Reward:
    """What came of what was in force over a long view's window.

    Attributes:
        good: Share of settled requests that kept both targets, weighted alike.
        requests: How many were settled.
    """

    situation: Situation
    good: float
    requests: int


class Selector(Protocol):
    """One way to choose.

    Attributes:
        name: Goes into the decision's `source`.
        trusted: Whether it is followed where no twin can judge: what only maps figures to policies by rules that people wrote or checked.
    """

    name: str
    trusted: bool

    def propose(self, situation: Situation) -> Proposal | Pending:
        """What should be in force, `situation.current` included. Asked once per evaluation (every Delta T_meta)."""
        ...

    def learn(self, reward: Reward) -> None:
        """Told before each evaluation what came of the last one's choice; ignored by those that do not learn."""
        ...
