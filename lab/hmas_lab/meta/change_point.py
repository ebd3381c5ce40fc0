"""Change points with a table (H-MAS C.2): it looks up a policy when the workload changes, and keeps it otherwise. Pure.

A lasting change calls for a new policy. qos reports changes of arrivals, lengths and task mix (agents/qos/changes.py). A CUSUM over the
share of missed targets complements them, because a fleet that loses speed changes none of these. After a change the long view still holds
earlier requests, so each evaluation looks the row up again until the view holds the new regime alone.
"""

from collections.abc import Sequence
from pathlib import Path

from hmas.agents.meta.candidate import Candidate, candidate
from hmas.agents.meta.make import SelectorSetup
from hmas.agents.meta.selectors.base import Proposal, Reward, Situation
from hmas.agents.meta.selectors.rules import SAMPLES_MIN, figures
from hmas.controller.core.messages import LongView
from hmas_lab.meta.features import FEATURES, features_of
from hmas_lab.meta.regimes import Row, look_up, read_table

SLACK, ALARM = 0.05, 0.4
"""Parameters of the CUSUM over violation rates: it ignores drifts below the first; a sum that reaches the second is a change."""
FORGETTING = 0.9
"""Weight, per evaluation, of the old level with which violation rates are compared."""


class Level:
    """Two one-sided CUSUMs over a share around its slowly moving level (Page, 1954)."""

    def __init__(self) -> None:
        self._level: float | None = None
        self._up = self._down = 0.0

    def observe(self, share: float) -> bool:
        """Takes a value; returns True if the level has changed, and then starts again from the new value."""
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
        rows: The table; outside its regimes the configured policy applies.
        trusted: Whether a person made or checked the table. The shipped one was learnt from simulations and is untrusted.
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
        """Proposes the regime's policy after a change, and the same as before otherwise."""
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
        """Does nothing: the table is fixed."""

    def _note(self, view: LongView, now_s: float) -> None:
        """Records what has changed; if the clock went back, the time of the last change is reset."""
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
        wanted = candidate(row.policy, row.parameters) if row.parameters else situation.candidate_of(row.policy)
        return wanted, f"regime {told or 'any'}: {row.policy}"

    def _said(self, situation: Situation, wanted: Candidate, reason: str) -> Proposal:
        return Proposal(candidate=wanted, reason=reason, source=self.name, evidence=figures(situation.view))


def make_change_point(setup: SelectorSetup) -> ChangePointSelector:
    """Builds the selector with the configured table, else the shipped one.

    Raises:
        ConfigError: As `read_table`.
    """
    own = setup.config.agents.meta_model
    return ChangePointSelector(read_table(Path(own).expanduser()) if own else read_table(), trusted=bool(own))
