"""Keeps an untrusted selector's choice active only while the twin expects it to beat the rule map's choice. Pure.

One pass by the judge is not enough: in a lull every policy serves all requests, and a policy that passed then would stay when the load
rises, because nothing proposes to leave it. So the rule map continues in shadow mode, following only its own proposals. Once per dwell time
what runs is compared with what would run without the selector. If the twin does not expect it to be better, or cannot tell, the rule map's
choice returns.
"""

from dataclasses import replace

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.base import Situation
from hmas.agents.meta.selectors.rules import RuleSelector


class Probation:
    """The rule map in shadow mode: `reference` would run if it alone decided. `every_s`: shortest time between two checks."""

    def __init__(self, start: Candidate, every_s: float) -> None:
        self.reference = start
        self._rules = RuleSelector()
        self._every_s = every_s
        self._checked_s = float("-inf")

    def follow(self, situation: Situation) -> None:
        """Lets the rule map choose as if its last choice were active."""
        self.reference = self._rules.propose(replace(situation, current=self.reference)).candidate

    def due(self, situation: Situation, now_s: float) -> bool:
        """Whether to compare what runs with the reference now; if so, the next interval begins."""
        if self.reference == situation.current or self.reference.policy not in situation.allowed:
            return False
        if 0.0 <= now_s - self._checked_s < self._every_s:
            return False
        self._checked_s = now_s
        return True
