"""Calls a selector, and goes on without it where it raises: a plugin's selector is foreign code. Pure and bounded."""

from hmas.agents.meta.selectors.base import Pending, Proposal, Reward, Selector, Situation

KINDS_MOST = 16
"""Most kinds of errors that are handed on to be logged."""
TEXT_MOST = 200
"""Most characters of an error's text in a reason."""


class SelectorCalls:
    """The calls of one selector."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._kinds: set[tuple[str, type[Exception]]] = set()
        self._faults: list[tuple[str, Exception]] = []

    def propose(self, situation: Situation, reward: Reward | None) -> Proposal | Pending:
        """Has the selector learn from a reward, if there is one, and propose. If it raises, what runs stays, and the reason says why."""
        call = "learn"
        try:
            if reward is not None:
                self._selector.learn(reward)
            call = "propose"
            return self._selector.propose(situation)
        except Exception as error:  # noqa: BLE001 - the decision reports it, and the agent logs it
            kind = (call, type(error))
            if kind not in self._kinds and len(self._kinds) < KINDS_MOST:
                self._kinds.add(kind)
                self._faults.append((call, error))
            why = f"the selector broke in `{call}`: {type(error).__name__}: {error}"[:TEXT_MOST]
            return Proposal(candidate=situation.current, reason=why, source=self._selector.name)

    def faults(self) -> list[tuple[str, Exception]]:
        """Returns the first error of each kind since the last call of this method, and in which method the selector raised it."""
        found, self._faults = self._faults, []
        return found
