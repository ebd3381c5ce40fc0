"""The rule map (H-MAS C.2, second choice for Pi_meta): from the dominant failure pattern of V_long to a policy. Pure.

The patterns are looked at in a fixed order, the most specific first, and the first that holds names the policy. A pattern that already
led to the policy in force holds until it falls below `RELEASE` of its threshold (hysteresis), so that figures near a threshold do not flap.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller.core.messages import LongView

SAMPLES = 20
"""Ended requests below which no pattern is believed."""
RELEASE = 0.7
UNFAIR_BELOW = 0.6
"""Jain's index under which tenants count as treated unfairly; 0.6 of three tenants means that one gets less than half of its part."""
MISSES = 0.05
"""Share of ended requests that missed their TTFT target while they waited: below it the policy is not the trouble."""
VARIED = 1.0
"""Coefficient of variation of service time above which long requests block short ones."""
LONG_BACKLOG = 0.3
"""Share of the waiting that are long."""

Hints = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the rules would have: a policy, why in words, and the figures that the words stand on."""

    policy: str
    reason: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    hints: Hints = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One failure pattern and the policy against it.

    Attributes:
        severity: Of a view: 1 and more where the pattern holds, 0 where there is nothing of it.
        words: The reason, filled with the view's fields.
    """

    policy: str
    severity: Callable[[LongView], float]
    words: Callable[[LongView], str]
    evidence: tuple[str, ...]


def _unfairness(view: LongView) -> float:
    return 0.0 if len(view.by_tenant) < 2 or view.violation_rate < MISSES else (1.0 - view.fairness) / (1.0 - UNFAIR_BELOW)


def _misses(view: LongView) -> float:
    return view.deadline_miss_share / MISSES


def _blocking(view: LongView) -> float:
    """Head-of-line blocking: waiting misses, unlike service times and a backlog of long requests, all at once; the weakest counts."""
    if view.queued <= 0:
        return 0.0
    return min(_misses(view), view.total_cv / VARIED, view.long_backlog / view.queued / LONG_BACKLOG)


PATTERNS = (
    Pattern(
        policy="wfq",
        severity=_unfairness,
        words=lambda v: f"tenants are served unevenly (Jain {v.fairness:.2f}) while {v.violation_rate:.0%} of requests miss a target",
        evidence=("fairness", "violation_rate"),
    ),
    Pattern(
        policy="edf",
        severity=_misses,
        words=lambda v: f"{v.deadline_miss_share:.0%} of requests missed their first-token target while waiting: the most urgent go first",
        evidence=("deadline_miss_share", "ttft_violation_rate", "queued"),
    ),
)
"""In order. Head-of-line blocking has no pattern of its own before deadlines: with demotion of what is too late, deadline order already
lets urgent short requests pass long ones, and kept more promises in the policy study than lanes or shortest-first at every load tried
(docs/results.md). Where nothing declares deadlines that differ, `BLOCKING` comes first; see `propose`."""

BLOCKING = Pattern(
    policy="two-lane",
    severity=_blocking,
    words=lambda v: (
        f"long requests block short ones (service time varies by {v.total_cv:.2f}, {v.long_backlog} of {v.queued} waiting are long)"
    ),
    evidence=("total_cv", "long_backlog", "queued", "deadline_miss_share"),
)


def propose(view: LongView, *, current: str, start: str) -> Proposal:
    """The policy that the view asks for.

    Args:
        view: The long view.
        current: Policy in force; its own pattern is released late.
        start: The configured policy, for when nothing is wrong.
    """
    if view.ended < SAMPLES:
        return Proposal(
            current, f"only {view.ended} requests ended in {view.window_s:.0f} s: too few to judge by", {"ended": float(view.ended)}
        )
    patterns = (PATTERNS[0], BLOCKING, *PATTERNS[1:]) if _one_kind_of_deadline(view) else PATTERNS
    for pattern in patterns:
        threshold = RELEASE if pattern.policy == current else 1.0
        if pattern.severity(view) >= threshold:
            return Proposal(pattern.policy, pattern.words(view), {name: float(getattr(view, name)) for name in pattern.evidence})
    return Proposal(
        start,
        f"no failure pattern: {view.violation_rate:.0%} of requests miss a target, {view.deadline_miss_share:.0%} while waiting",
        {"violation_rate": view.violation_rate, "deadline_miss_share": view.deadline_miss_share},
    )


def _one_kind_of_deadline(view: LongView) -> bool:
    """Whether nine of ten requests are of one task type, so that their targets hardly differ and deadline order is arrival order."""
    return max(view.by_task.values(), default=0.0) >= 0.9
