"""Change points with a table (H-MAS C.2): a policy is looked up when the workload has changed, and kept while it has not. Pure.

What asks for a new policy is a change that lasts: qos names those of arrivals, lengths and task mix (agents/qos/changes.py), and a CUSUM
over the share of missed targets stands beside them, because a fleet that loses speed changes none of these. After a change the long view
still holds requests from before it; so the row is looked up anew at each evaluation until the view is of the new regime alone.
"""

from collections.abc import Sequence

from hmas.agents.meta.candidate import Candidate, candidate
from hmas.agents.meta.selectors.base import Proposal, Reward, Situation
from hmas.agents.meta.selectors.classifier import known
from hmas.agents.meta.selectors.features import FEATURES, features_of
from hmas.agents.meta.selectors.rules import SAMPLES_MIN, figures
from hmas.agents.meta.selectors.table import Row, look_up
from hmas.controller.core.messages import LongView

SLACK, ALARM = 0.05, 0.4
"""Of the CUSUM over violation rates: a drift below the first is none, and what adds up to the second is a change."""
FORGETTING = 0.9
"""Of the level that violation rates are held against, per evaluation."""


class Level:
    """Two one-sided CUSUMs over a share around its slowly moving level (Page, 1954)."""

    def __init__(self) -> None:
        self._level: float | None = None
        self._up = self._down = 0.0

    def observe(self, share: float) -> bool:
        """Takes a value; True where its level has changed, which begins anew from there."""
        if self._level is None:
            self._level = share
        self._up = max(0.0, self._up + share - self._level - SLACK)
        self._down = max(0.0, self._down + self._level - share - SLACK)
        self._level = FORGETTING * self._level + (1.0 - FORGETTING) * share
        if max(self._up, self._down) < ALARM:
            return False
        self._level, self._up, self._down = share, 0.0, 0.0
        return True


class ChangePointSelector:
    """Looks up a policy whenever the workload has changed.

    Args:
        rows: The table; what is in none of its regimes is the configured policy's.
        trusted: Whether a person has made or checked it. The shipped one was learnt from simulations, and is judged as what is learnt.
    """

    name = "change-point"

    def __init__(self, rows: Sequence[Row], *, trusted: bool = True) -> None:
        self.trusted = trusted
        self._rows = list(rows)
        self._misses = Level()
        self._changed_s: float | None = None
        self._why = "the first view"
        self._wanted: tuple[Candidate, str] | None = None

    def propose(self, situation: Situation) -> Proposal:
        """The regime's policy after a change, what it was else."""
        view, now_s = situation.view, situation.now_s
        if view.ended < SAMPLES_MIN:
            reason = f"keep: {view.ended} requests ended within {view.window_s:.0f} s are too few to judge by"
            return self._said(situation, situation.current, reason)
        self._note(view, now_s)
        if self._wanted is None or (self._changed_s is not None and now_s - self._changed_s <= view.window_s):
            self._wanted = self._look_up(situation)
        wanted, regime = self._wanted
        if wanted.policy not in situation.allowed:
            return self._said(situation, situation.current, f"keep: {regime}, but it was rolled back lately")
        return self._said(situation, wanted, f"{regime}; since {self._why}")

    def learn(self, reward: Reward) -> None:
        """The table is what it is."""

    def _note(self, view: LongView, now_s: float) -> None:
        """Takes in what has changed; a clock that has gone back begins anew."""
        if self._changed_s is not None and self._changed_s > now_s:
            self._changed_s = None
        if self._misses.observe(view.violation_rate):
            self._changed_s, self._why = now_s, f"the share of misses changed to {view.violation_rate:.0%}"
        for change in view.changes:
            if self._changed_s is None or change.found_s > self._changed_s:
                self._changed_s = change.found_s
                told = f" ({change.detail})" if change.detail else ""
                self._why = f"{change.figure} changed from {change.before:.3g} to {change.after:.3g}{told}"
        if self._changed_s is None:
            self._changed_s = now_s

    def _look_up(self, situation: Situation) -> tuple[Candidate, str]:
        seen = dict(zip(FEATURES, features_of(situation.view, situation.current.policy), strict=True))
        row = look_up(self._rows, seen)
        if row is None:
            return situation.start, f"no regime of the table: {situation.start.policy}"
        told = ", ".join(f"{name} {seen[name]:.2g}" for name in row.when)
        wanted = candidate(row.policy, row.parameters) if row.parameters else known(row.policy, situation)
        return wanted, f"regime {told or 'any'}: {row.policy}"

    def _said(self, situation: Situation, wanted: Candidate, reason: str) -> Proposal:
        return Proposal(candidate=wanted, reason=reason, source=self.name, evidence=figures(situation.view))
