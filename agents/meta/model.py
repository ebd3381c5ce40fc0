"""The meta controller's model (H-MAS 3.4.1, C.1, C.2): views in, at most one decision out. Pure and bounded.

The slow part looks at V_long once per `period_s` and asks the rule map (`rules`). The fast part looks at V_short for the guards
(`guards`). In between stand the dwell time, a pause after a rollback, and the operators: what they force is not argued with.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agents.meta.guards import BypassGuard, RollbackWindow, baseline_of
from agents.meta.rules import propose
from controller.core.messages import LongView, MetaDecision, ShortView

FORCED = "policy"
"""The name under which views say that operators hold the policy."""
PENALTY_DWELLS = 4.0
"""After a rollback the policy that failed is not tried again for this many dwell times."""


@dataclass(frozen=True, slots=True)
class MetaSettings:
    """Pace and bounds.

    Attributes:
        start: The configured policy: what holds when nothing is wrong.
        pool: Policies that may be named; anything else is refused before it leaves the agent.
        period_s: Delta T_meta. `dwell_s`: least time between two switches by the rules.
        rollback_window_s, rollback_ratio: How long Eq. 12 is watched, and its rho.
    """

    start: str
    pool: Collection[str]
    period_s: float
    dwell_s: float
    rollback_window_s: float
    rollback_ratio: float


class MetaModel:
    """State of meta. The policy in force is the one that the views name, not the one that was last asked for."""

    def __init__(self, settings: MetaSettings) -> None:
        self.settings = settings
        self._bypass = BypassGuard()
        self._window: RollbackWindow | None = None
        self._short: ShortView | None = None
        self._stable = settings.start
        self._hints: Mapping[str, float] = {}
        self._switched_s = float("-inf")
        self._decided_s = float("-inf")
        self._failed_until_s: dict[str, float] = {}
        self._bypassed = False
        self._count = 0

    def restore(self, decision: MetaDecision) -> None:
        """Goes on from its own last decision after a restart: policy, dwell time and numbering, a bypass too."""
        if decision.policy not in self.settings.pool:
            return
        self._bypassed = self._bypass.active = decision.bypass
        self._stable = decision.previous if decision.bypass and decision.previous in self.settings.pool else decision.policy
        self._hints = dict(decision.hints)
        self._decided_s = decision.sent_s
        if decision.policy != decision.previous:
            self._switched_s = decision.sent_s

    def observe_short(self, view: ShortView, now_s: float) -> MetaDecision | None:
        """The guards' part: bypass on or off, or a rollback; None where nothing is to be said."""
        self._short = view
        active = self._bypass.observe(view, now_s)
        if active != self._bypassed:
            self._bypassed = active
            self._window = None
            if active:
                return self._decide("fcfs", view.policy, self._bypass.reason, "bypass", now_s, bypass=True)
            return self._switch(self._stable, view.policy, self._bypass.reason, "bypass", now_s)
        return None if active or FORCED in view.forced else self._rolled_back(view, now_s)

    def observe_long(self, view: LongView, now_s: float) -> MetaDecision | None:
        """The selector's part, once per period. A decision that keeps the policy is a sign of life and carries its reason too."""
        if now_s - self._decided_s < self.settings.period_s:
            return None
        if self._bypassed:
            return self._decide("fcfs", view.policy, self._bypass.reason, "bypass", now_s, bypass=True)
        if FORCED in view.forced:
            # An operator's policy is no experiment of ours: nothing to roll back, and the dwell time starts anew on release.
            self._window = None
            self._switched_s = now_s
            return self._decide(self._stable, self._stable, "an operator holds the policy", "keep", now_s)
        wanted = propose(view, current=self._stable, start=self.settings.start)
        held = self._held_back(wanted.policy, now_s)
        if wanted.policy == self._stable or held:
            reason = f"{wanted.reason}; {wanted.policy} would be next, but {held}" if held else wanted.reason
            return self._decide(self._stable, self._stable, reason, "keep", now_s, evidence=wanted.evidence)
        self._hints = dict(wanted.hints)
        return self._switch(wanted.policy, self._stable, wanted.reason, "rules", now_s, evidence=wanted.evidence)

    def _held_back(self, policy: str, now_s: float) -> str:
        """Why a switch to the policy may not be made now; empty where it may."""
        if policy == self._stable:
            return ""
        if policy not in self.settings.pool:
            return f"it is not in the pool ({', '.join(sorted(self.settings.pool))})"
        if now_s - self._switched_s < self.settings.dwell_s:
            return f"{self._stable} has been in force for less than {self.settings.dwell_s:.0f} s"
        if now_s < self._failed_until_s.get(policy, float("-inf")):
            return "it was rolled back not long ago"
        return "the last switch is still being watched" if self._window is not None else ""

    def _rolled_back(self, view: ShortView, now_s: float) -> MetaDecision | None:
        window = self._window
        if window is None:
            return None
        why = window.verdict(view, now_s)
        if not why:
            if now_s >= window.until_s:
                self._window = None
            return None
        self._window = None
        self._hints = {}
        self._failed_until_s[window.switched_to] = now_s + PENALTY_DWELLS * self.settings.dwell_s
        self._stable = window.previous
        self._switched_s = now_s
        return self._decide(window.previous, window.switched_to, why, "rollback", now_s)

    def _switch(
        self, policy: str, previous: str, reason: str, source: str, now_s: float, *, evidence: Mapping[str, float] | None = None
    ) -> MetaDecision:
        """A change of policy, watched by Eq. 12 from here."""
        settings = self.settings
        if self._short is not None and source == "rules":
            until_s = now_s + settings.rollback_window_s
            self._window = RollbackWindow(previous, policy, baseline_of(self._short), now_s, until_s, settings.rollback_ratio)
        self._stable = policy
        self._switched_s = now_s
        return self._decide(policy, previous, reason, source, now_s, evidence=evidence)

    def _decide(
        self,
        policy: str,
        previous: str,
        reason: str,
        source: str,
        now_s: float,
        *,
        bypass: bool = False,
        evidence: Mapping[str, float] | None = None,
    ) -> MetaDecision:
        self._decided_s = now_s
        self._count += 1
        return MetaDecision(
            sent_s=now_s,
            decision_id=f"meta-{now_s:.3f}-{self._count}",
            policy=policy,
            previous=previous,
            hints={} if bypass else dict(self._hints),
            bypass=bypass,
            reason=reason,
            source=source,
            evidence=dict(evidence or {}),
        )
