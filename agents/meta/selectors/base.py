"""The interface of all selectors (H-MAS C.1, C.2). Pure.

A selector proposes; it decides nothing. Its proposals pass the guards (whitelist, dwell, agreement, budget of switches) and the twin's
judgement, if there is a twin. So a selector may be wrong, slow, or hostile, and cost no more than its own benefit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from hmas.agents.meta.candidate import Candidate, candidate
from hmas.controller.core.messages import CandidateOutlook, LongView


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a selector.

    Attributes:
        view: The newest long view.
        current: The active candidate. `since_s`: since when it is active.
        start: The configured candidate: meta starts with it and returns to it.
        allowed: Policies that may be proposed, in alphabetical order: the pool without policies that were rolled back recently.
        routers: Routers that may be proposed, likewise; an empty text is the configured one. None where only the active one may.
    """

    view: LongView
    current: Candidate
    start: Candidate
    allowed: tuple[str, ...]
    since_s: float
    now_s: float
    routers: tuple[str, ...] = ()

    def candidate_of(self, policy: str) -> Candidate:
        """The active or the configured candidate if it has this policy, else the policy with its defaults; the router stays as it is."""
        found = next((one for one in (self.current, self.start) if one.policy == policy), None) or candidate(policy)
        return found.routed(self.current.router)

    def may_route(self, wanted: Candidate) -> bool:
        """Whether a candidate with this router may be proposed."""
        return wanted.router == self.current.router or wanted.router in self.routers


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A selector's proposal.

    Attributes:
        reason: The reason in words, with figures.
        source: The selector's name, or that of its fallback.
        confidence: The selector's own confidence, 0 to 1.
        evidence: Figures that support the proposal.
        candidates: The examined candidates with their expected results, best first.
    """

    candidate: Candidate
    reason: str
    source: str
    confidence: float = 1.0
    evidence: Mapping[str, float] = {}
    candidates: tuple[CandidateOutlook, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """A proposal that takes a while.

    Attributes:
        compute: The slow part: a plain function that touches no state that the selector's other methods use. It may run in a thread.
        finish: The fast part: makes the proposal from the result of `compute`.
        failed: Makes a proposal from the text of an error that `compute` raised.
    """

    compute: Callable[[], Any]
    finish: Callable[[Any], Proposal]
    failed: Callable[[str], Proposal]


@dataclass(frozen=True, slots=True)
class Reward:
    """The outcome of the active candidate over a long view's window: the share `good` of settled requests met both targets."""

    situation: Situation
    good: float
    requests: int


class Selector(Protocol):
    """A method of choosing a policy.

    Attributes:
        name: Name for the decision's `source`.
        trusted: Whether meta follows it without a twin: true only for rules that people wrote or checked.
    """

    name: str
    trusted: bool

    def propose(self, situation: Situation) -> Proposal | Pending:
        """Proposes what should be active, `situation.current` included. Meta asks once per evaluation (every Delta T_meta)."""
        ...

    def learn(self, reward: Reward) -> None:
        """Receives the outcome of the last evaluation's choice before each evaluation; selectors that do not learn ignore it."""
        ...


@runtime_checkable
class ModelSelector(Selector, Protocol):
    """A selector with a trained model, named `version`, on which the agent reports."""

    version: str

    @property
    def answered(self) -> int:
        """Number of rows that the model has answered."""
        ...

    def figures(self) -> dict[str, float]:
        """The model's figures for `ModelReport.figures`."""
        ...
