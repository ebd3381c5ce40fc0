"""What statera and meta decide."""

from collections.abc import Mapping

import msgspec
from msgspec import field

from hmas.controller.core.messages.base import Message

OPEN_WINDOW = 1 << 16
"""A window beyond every ceiling: an instance takes what it can, and only the TPOT guard and the KV fence hold back."""


def label_of(policy: str, parameters: Mapping[str, float], n_run: int) -> str:
    """A policy with its parameters and window in words, such as `two-lane(threshold_ms=4000)` or `fcfs, window 48`."""
    told = ", ".join(f"{name}={value:g}" for name, value in sorted(parameters.items()))
    name = f"{policy}({told})" if told else policy
    if not n_run:
        return name
    return f"{name}, window {'open' if n_run >= OPEN_WINDOW else n_run}"


class LengthBound(msgspec.Struct, frozen=True, kw_only=True):
    """Conformal correction of one prompt-length bucket (H-MAS Eq. 4, B.3).

    Attributes:
        prompt_tokens_below: Upper edge of the bucket (exclusive); 0 for the last, unbounded one.
        add_tokens: q_(1-eps) of l_real - l_pred in the bucket.
        samples: Errors it stands on.
    """

    prompt_tokens_below: int
    add_tokens: float
    samples: int


class ControlAction(Message, frozen=True, tag="action"):
    """Statera's output C_t for one instance (statera -> gateway).

    Attributes:
        token_budget: 0 leaves the engine's own.
        guard: Factor on the share that the gateway's TPOT guard lets a prompt take, above 0 to 1.
    """

    sent_s: float
    instance: str
    n_run: int
    token_budget: int = 0
    length_bounds: list[LengthBound] = field(default_factory=list)
    utilization: float = 0.0
    error: float = 0.0
    reason: str = ""
    guard: float = 1.0


class CandidateOutlook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the digital twin expects of one candidate.

    Attributes:
        n_run: Window of each instance, 0 for statera's.
        good: Share of requests that would keep both targets, 0 to 1, weighted by tenants.
        gain: How much more than under what was in force; `error` its standard error. Both 0 for what was in force.
    """

    policy: str
    parameters: dict[str, float] = field(default_factory=dict)
    n_run: int = 0
    good: float = 0.0
    gain: float = 0.0
    error: float = 0.0


class MetaDecision(Message, frozen=True, tag="decision"):
    """Meta's output A_t with parameters (meta -> gateway).

    Attributes:
        decision_id: Unique; the gateway's event names it when applied.
        parameters: Topology-specific parameters, validated by the policy (H-MAS C.1).
        bypass: Emergency bypass: FCFS and unbounded knobs (C.2).
        source: `rules`, `twin`, `llm`, `rollback`, `bypass`, ...
        evidence: The figures the reason stands on.
        confidence: What the selector gives its own word, 0 to 1.
        candidates: What was looked at and what was expected of each, best first; empty where nobody replayed anything.
        n_run: Window that meta holds for every instance, at most its ceiling; 0 leaves windows to statera.
        changed: Whether something else is in force now than before: policy, parameters or window.
        repeats: Id of the decision that this one only repeats as a sign of life, empty for one of its own.
    """

    sent_s: float
    decision_id: str
    policy: str
    previous: str
    parameters: dict[str, float] = field(default_factory=dict)
    bypass: bool = False
    reason: str = ""
    source: str = "rules"
    evidence: dict[str, float] = field(default_factory=dict)
    confidence: float = 1.0
    candidates: list[CandidateOutlook] = field(default_factory=list)
    n_run: int = 0
    changed: bool = False
    repeats: str = ""


class DecisionOutcome(Message, frozen=True, tag="decision_outcome"):
    """What became of a decision (meta -> operators), told once the span that it is judged by is over.

    Attributes:
        from_s, until_s: That span.
        requests: Settled within it.
        good: Share of them that kept both targets, in truth.
        expected: Share that was expected when it was decided, -1 where nobody replayed anything.
        best: The candidate that would have done best in hindsight, by replay; empty where that is not known. `best_good` its share of good
            requests in that replay, `chosen_good` that of what was decided.
    """

    sent_s: float
    decision_id: str
    from_s: float
    until_s: float
    requests: int
    good: float
    expected: float = -1.0
    best: str = ""
    best_good: float = 0.0
    chosen_good: float = 0.0

    @property
    def regret(self) -> float:
        """How much more the best would have kept in time, by replay; 0 where that is not known."""
        return max(0.0, self.best_good - self.chosen_good)
