"""The decisions of statera and meta."""

from collections.abc import Mapping

import msgspec
from msgspec import field

from hmas.controller.core.messages.base import Message

OPEN_WINDOW = 1 << 16
"""A window beyond every ceiling: an instance takes as many requests as it can, limited only by the TPOT guard and the KV fence."""


def label_of(policy: str, parameters: Mapping[str, float], n_run: int, router: str = "") -> str:
    """Describes a policy with parameters, window and router, such as `two-lane(threshold_ms=4000)` or `fcfs, window 48, router default`."""
    told = ", ".join(f"{name}={value:g}" for name, value in sorted(parameters.items()))
    window = f"window {'open' if n_run >= OPEN_WINDOW else n_run}" if n_run else ""
    return ", ".join(filter(None, (f"{policy}({told})" if told else policy, window, router and f"router {router}")))


class LengthBound(msgspec.Struct, frozen=True, kw_only=True):
    """Conformal correction of one prompt-length bucket (H-MAS Eq. 4, B.3).

    Attributes:
        prompt_tokens_below: Upper edge of the bucket (exclusive); 0 for the last, unbounded one.
        add_tokens: q_(1-eps) of l_real - l_pred in the bucket.
        samples: Number of errors that it is based on.
        model: The model whose requests it is for; empty for all that have no bound of their own before it in a list.
    """

    prompt_tokens_below: int
    add_tokens: float
    samples: int
    model: str = ""


class ControlAction(Message, frozen=True, tag="action"):
    """Statera's output C_t for one instance (statera -> gateway).

    Attributes:
        token_budget: Tokens per step; 0 leaves the engine's own value.
        reason, budget_reason, guard_reason: Why window, token budget and guard have their values, since the last change of each; an empty
            one of the last two stands for `reason`.
        guard: Factor on the share that the gateway's TPOT guard allows a prompt, above 0 to 1.
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
    budget_reason: str = ""
    guard_reason: str = ""


class CandidateOutlook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The digital twin's forecast for one candidate.

    Attributes:
        n_run: Window of each instance, 0 for the one that statera sets.
        router: Router of all models, as in `MetaDecision`.
        good: Forecast share of requests that meet both targets, 0 to 1, weighted by tenants.
        gain: By how much this share exceeds that of the active settings; `error`: its standard error. Both are 0 for the active settings.
    """

    policy: str
    parameters: dict[str, float] = field(default_factory=dict)
    n_run: int = 0
    router: str = ""
    good: float = 0.0
    gain: float = 0.0
    error: float = 0.0


class MetaDecision(Message, frozen=True, tag="decision"):
    """Meta's output A_t with parameters (meta -> gateway).

    Attributes:
        previous: The policy that was active before. In a bypass: the one that returns after it, with the window `previous_n_run`, the
            router `previous_router` and the parameters `previous_parameters`, which are told of a bypass alone.
        decision_id: Unique id; the gateway's event names it when the decision is applied.
        parameters: Topology-specific parameters, validated by the policy (H-MAS C.1).
        bypass: Whether this is the emergency bypass: FCFS and unbounded knobs (C.2).
        source: `rules`, `twin`, `llm`, `rollback`, `bypass`, ...
        evidence: The figures that the reason is based on.
        confidence: The selector's confidence in its decision, 0 to 1.
        candidates: The candidates with the forecast for each, best first; empty without a replay.
        n_run: Window that meta sets for every instance, at most its ceiling; 0 leaves windows to statera.
        changed: Whether the decision changes the active policy, parameters, window or router.
        repeats: Id of the decision that this one only repeats as a sign of life, empty for a new decision.
        router: Router of all models without one of their own, as `make_router` reads it; empty leaves the configured one.
        configured: Label (`label_of`) of the configured policy with its parameters that meta goes by; empty if not told.
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
    previous_parameters: dict[str, float] = field(default_factory=dict)
    previous_n_run: int = 0
    previous_router: str = ""
    router: str = ""
    configured: str = ""


class DecisionOutcome(Message, frozen=True, tag="decision_outcome"):
    """The outcome of a decision (meta -> operators), sent once the span that it is judged by is over.

    Attributes:
        from_s, until_s: That span.
        requests: Number of requests that ended within it.
        good: Actual share of those that were settled within it (`LongView.goodput_rate`) that met both targets.
        expected: Share that was forecast when the decision was made, -1 without a replay.
        best: The candidate that would have done best in hindsight, by replay; empty if unknown, and where the replay of the chosen one is
            far from `good`. `best_good`: its share of good requests in that replay; `chosen_good`: that of the chosen one.
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
        """By how much the best candidate's share of good requests exceeds that of the chosen one, by replay; 0 if unknown."""
        return max(0.0, self.best_good - self.chosen_good)
