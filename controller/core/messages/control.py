"""What statera and meta decide."""

import msgspec
from msgspec import field

from controller.core.messages.base import Message


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
    """Statera's output C_t for one instance (statera -> gateway). An omitted `token_budget` leaves the engine's own."""

    sent_s: float
    instance: str
    n_run: int
    token_budget: int = 0
    length_bounds: list[LengthBound] = field(default_factory=list)
    utilization: float = 0.0
    error: float = 0.0
    reason: str = ""


class MetaDecision(Message, frozen=True, tag="decision"):
    """Meta's output A_t with hints (meta -> gateway).

    Attributes:
        decision_id: Unique; the gateway's event names it when applied.
        hints: Topology-specific parameters, validated by the policy (H-MAS C.1).
        bypass: Emergency bypass: FCFS and unbounded knobs (C.2).
        source: `rules`, `rollback`, `bypass`, ...
        evidence: The figures the reason stands on.
    """

    sent_s: float
    decision_id: str
    policy: str
    previous: str
    hints: dict[str, float] = field(default_factory=dict)
    bypass: bool = False
    reason: str = ""
    source: str = "rules"
    evidence: dict[str, float] = field(default_factory=dict)
