"""The paper's rule-based policy map (3.4.1, C.2): overload -> FCFS (anomalies: by the bypass), unfairness -> WFQ, sustained head-of-line
blocking -> Two-lane, misses by deadlines -> EDF; otherwise what runs stays. Pure.

The paper prints the map without thresholds; those below are read off its words. EDF orders by D_r and SJF by T_tot alone, as C.1 has them.
"""

from collections.abc import Mapping
from types import MappingProxyType

from hmas.agents.meta.candidate import candidate
from hmas.agents.meta.selectors.base import Proposal, Reward, Situation
from hmas.agents.meta.selectors.rules import SAMPLES_MIN, figures, long_backlog_share
from hmas.controller.core.messages import LongView

OVERLOAD_RATE, OVERLOAD_MISMATCH = 0.9, 1.0
"""Extreme overload: so many miss their targets while demand is twice the service (Eq. 7 at 1)."""
UNFAIR = 0.7
"""Jain index below which tenants are treated unfairly."""
FAILING = 0.1
"""Share of misses from which a pattern of failure counts as one."""
HIGH_VARIANCE = 1.0
"""Coefficient of variation of service times: high length variance."""
DOMINATED = 0.5
"""Share of the misses that deadlines lost in the queue must make up."""
AS_PRINTED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {"edf": {"key": 1.0}, "sjf": {"aging_ms_per_s": 0.0}, "two-lane": {"gate_ms": 1000.0}}
)
"""Parameters under which a policy of the pool is the paper's: D_r instead of the TTFT deadline, no aging, gates (the period is ours)."""


def mapped(view: LongView) -> tuple[str, str]:
    """The policy that the map names and why; an empty policy where no pattern shows, and what runs stays."""
    missed = f"{view.violation_rate:.0%} miss their SLO"
    if view.ended < SAMPLES_MIN:
        return "", f"only {view.ended} requests ended"
    if view.violation_rate >= OVERLOAD_RATE and view.mismatch >= OVERLOAD_MISMATCH:
        return "fcfs", f"overload: {missed}, demand runs {view.mismatch:.0%} beyond service"
    if len(view.by_tenant) > 1 and view.fairness < UNFAIR and view.violation_rate >= FAILING:
        return "wfq", f"persistent unfairness: Jain index {view.fairness:.2f}, {missed}"
    if view.total_cv >= HIGH_VARIANCE and view.ttft_violation_rate >= FAILING and long_backlog_share(view) >= view.long_share > 0.0:
        return "two-lane", f"head-of-line blocking: service varies by {view.total_cv:.2f}, {view.long_backlog} long requests wait, {missed}"
    if view.violation_rate >= FAILING and view.deadline_miss_share >= DOMINATED * view.violation_rate:
        return "edf", f"deadlines dominate: {view.deadline_miss_share:.0%} are lost in the queue, {missed}"
    return "", f"no pattern of failure: {missed}"


class PaperRuleSelector:
    """The map as a selector."""

    name = "paper-rules"
    trusted = True

    def propose(self, situation: Situation) -> Proposal:
        """Returns the map's choice, or what runs."""
        policy, reason = mapped(situation.view)
        if policy in {"", situation.current.policy} or policy not in situation.allowed:
            return Proposal(candidate=situation.current, reason=f"keep: {reason}", source=self.name, evidence=figures(situation.view))
        wanted = candidate(policy, AS_PRINTED.get(policy))
        return Proposal(candidate=wanted, reason=reason, source=self.name, evidence=figures(situation.view))

    def learn(self, reward: Reward) -> None:
        """Does nothing: rules do not learn."""
