"""The rule map from V_long to a policy (H-MAS 3.4.1, C.2, "rule-based policy map"). Pure.

The starting policy stays unless a rule speaks against it. Each rule has a threshold to enter and a lower one to leave. Leaving depends on
the load that caused the trouble: a policy that cures a symptom is not abandoned because the symptom is gone.

The thresholds follow the policies' results in simulation. `robust-edf` is the best of five policies, or as good, in 114 of 120 workloads
that `hmas-lab train-meta` draws (docs/meta.md), at every load and with every handling of late requests. So where it runs, no rule replaces
it except for unevenly treated tenants; where another order runs, overload is the reason to change to it. `late_service` separates an
overload that costs service from one that does not: under deadline order and at loads of 0.6 to 2.0 of capacity it is below 0.2 if late
requests go last or are shed, and 0.3 or more if they keep their place. Eq. 7 averages 0.2 in bursts at a load of 0.7, 0.35 at 0.9 and 0.6
at 1.2.
"""

from hmas.agents.meta.selectors.base import Proposal, Reward, Situation
from hmas.controller.core.messages import LongView

SAMPLES_MIN = 30
"""A long view with fewer ended requests decides nothing."""
CALM = 0.05
"""Violation rate below which a workload without a lasting excess of demand counts as calm."""
CALM_MISMATCH = 0.3
BY_COST = ("robust-edf", "sjf", "srtf")
"""Orders that already give up the costliest requests first."""


Wish = tuple[str, str]
"""A policy of the pool, and the reason for it in words, with figures."""


class RuleSelector:
    """The rule map as a selector."""

    name = "rules"
    trusted = True

    def propose(self, situation: Situation) -> Proposal:
        """Returns the rules' proposal."""
        policy, reason = choose(situation.view, current=situation.current.policy, start=situation.start.policy)
        return Proposal(candidate=situation.candidate_of(policy), reason=reason, source=self.name, evidence=figures(situation.view))

    def learn(self, reward: Reward) -> None:
        """Does nothing: rules do not learn."""


def choose(view: LongView, *, current: str, start: str) -> Wish:
    """Chooses a policy for the long view. `current`: the active one; `start`: the configured one."""
    if view.ended < SAMPLES_MIN:
        found = f"{view.ended} requests" if view.ended != 1 else "1 request"
        few = f"keep: {found} ended within {view.window_s:.0f} s, fewer than the {SAMPLES_MIN} that a judgement needs"
        return current, few
    for rule in (_unfair, _drowning, _blocked, _late):
        wish = rule(view, current)
        if wish is not None:
            return wish
    missed = f"{view.violation_rate:.0%} miss their SLO"
    if current == start:
        return start, f"keep: {missed}, {_no_other(view, start)}"
    if not is_calm(view):
        return current, f"keep: the load that asked for {current} is still there; {missed}"
    return start, f"the load that asked for {current} is gone; {missed}"


def _no_other(view: LongView, policy: str) -> str:
    """Why no rule asks for another policy than the configured one."""
    if view.violation_rate < CALM:
        return "too few to look for another policy"
    if view.mismatch >= CALM_MISMATCH:
        return f"since the tokens asked for exceed those served by {view.mismatch:.0%}; no rule knows a better order for that than {policy}"
    return f"but no rule knows a better order for that than {policy}"


def figures(view: LongView) -> dict[str, float]:
    """Returns the figures that the rules use."""
    return {
        "violation_rate": view.violation_rate,
        "ttft_violation_rate": view.ttft_violation_rate,
        "tpot_violation_rate": view.tpot_violation_rate,
        "deadline_miss_share": view.deadline_miss_share,
        "late_service": view.late_service,
        "total_cv": view.total_cv,
        "long_backlog_share": long_backlog_share(view),
        "mismatch": view.mismatch,
        "fairness": view.fairness,
        "arrival_rps": view.arrival_rps,
        "goodput_rps": view.goodput_rps,
        "ttft_ms_p99": view.ttft_ms.p99,
    }


def long_backlog_share(view: LongView) -> float:
    """Share of the queue that is long requests; 0 for an empty queue."""
    return min(1.0, view.long_backlog / view.queued) if view.queued > 0 else 0.0


def is_calm(view: LongView) -> bool:
    """Whether few requests miss their targets and demand, apart from bursts, does not exceed service."""
    return view.violation_rate < CALM and view.mismatch < CALM_MISMATCH


def _unfair(view: LongView, current: str) -> Wish | None:
    """Persistent unfairness among tenants that compete -> weighted fair queueing."""
    if current == "wfq" or len(view.by_tenant) < 2 or view.fairness >= 0.7 or view.violation_rate < 2 * CALM:
        return None
    uneven = f"service among {len(view.by_tenant)} tenants is uneven, Jain index {view.fairness:.2f}"
    return "wfq", f"{uneven}, while {view.violation_rate:.0%} miss their SLO"


def _drowning(view: LongView, current: str) -> Wish | None:
    """Demand exceeds service, and most capacity goes to requests that are already late -> robust deadline order."""
    if current in BY_COST or _is_uneven(view) or view.late_service < 0.5 or view.mismatch < 0.5:
        return None
    lost = f"{view.late_service:.0%} of service goes to requests that are late already, demand runs {view.mismatch:.0%} beyond service"
    return "robust-edf", f"{lost}: the costliest are given up first"


def _blocked(view: LongView, current: str) -> Wish | None:
    """Sustained head-of-line blocking: lengths vary, requests are served late, long ones are in the queue -> robust deadline order."""
    if current in {*BY_COST, "two-lane"} or _is_uneven(view) or view.total_cv < 0.7 or view.late_service < 0.3:
        return None
    if view.ttft_violation_rate < 0.3 or (view.long_backlog == 0 and view.queued > 0):
        return None
    blocked = f"service time varies by {view.total_cv:.2f}, {view.late_service:.0%} are served too late"
    return "robust-edf", f"{blocked}, {view.ttft_violation_rate:.0%} miss TTFT: the long no longer before the short"


def _late(view: LongView, current: str) -> Wish | None:
    """Most misses are deadlines lost in the queue, under an order that ignores deadlines -> robust deadline order."""
    if current != "fcfs" or view.deadline_miss_share < 2 * CALM or view.deadline_miss_share < 0.5 * view.violation_rate:
        return None
    lost = f"{view.deadline_miss_share:.0%} miss TTFT while waiting, of {view.violation_rate:.0%} that miss their SLO"
    return "robust-edf", f"{lost}: deadlines first"


def _is_uneven(view: LongView) -> bool:
    """Whether fairness among tenants has priority over speed."""
    return len(view.by_tenant) >= 2 and view.fairness < 0.85
