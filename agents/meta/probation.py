"""What an untrusted selector has put in force stays only while the twin expects it to be better than what the rule map would run. Pure.

Passing the judge once is not enough: in a lull every policy serves all, and one that was let in then would stay when the load comes, for
nobody proposes to leave it. So the rule map goes on in the shadow, by its own word alone, and every dwell time what runs is held against
what would run without the selector. Where the twin does not expect it to be better, or cannot say, the rule map's choice comes back.
"""

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.base import Situation
from hmas.agents.meta.selectors.rules import RuleSelector


class Probation:
    """The rule map in the shadow.

    Args:
        start: The configured policy.
        every_s: Least time between two checks.

    Attributes:
        reference: What would run if the rule map alone spoke.
    """

    def __init__(self, start: Candidate, every_s: float) -> None:
        self.reference = start
        self._rules = RuleSelector()
        self._every_s = every_s
        self._checked_s = float("-inf")

    def follow(self, situation: Situation) -> None:
        """Lets the rule map choose as if its last choice were in force."""
        shadow = Situation(
            view=situation.view,
            current=self.reference,
            start=situation.start,
            allowed=situation.allowed,
            since_s=situation.since_s,
            now_s=situation.now_s,
            anomalies=situation.anomalies,
        )
        self.reference = self._rules.propose(shadow).candidate

    def due(self, situation: Situation, now_s: float) -> bool:
        """Whether what runs is to be held against the reference now; begins the next span where it is."""
        if self.reference == situation.current or self.reference.policy not in situation.allowed:
            return False
        if 0.0 <= now_s - self._checked_s < self._every_s:
            return False
        self._checked_s = now_s
        return True
