"""Uses the twin to judge another selector's proposals: it passes those that it does not expect to be worse than what runs. Pure.

For an untrusted selector that is too weak: when all policies serve alike, nothing is worse, and the selector could change anything. Its
proposals must be better, by more than the chance that repeated attempts give.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.twin import outlooks_of, points, weigh
from hmas.agents.meta.twin.twin import MARGIN, Answer, Question, Twin
from hmas.controller.core.messages import CandidateOutlook

TOLERANCE = 0.005
"""Share of requests by which a proposal may look worse and still pass: the replay cannot resolve less."""

SURE_OF_ALL = 3.2
"""Standard errors by which an untrusted proposal must win. It can be made at every evaluation, so chance alone would pass it at some point:
an hour has sixty independent windows, and at most one in twenty such hours may pass a false proposal (0.05 / 60)."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The judge's answer.

    Attributes:
        passes: Whether the proposal is not expected to be worse; None if the twin cannot tell.
        reason: The reason in words, with figures.
        outlooks: Expected results of the running and of the proposed candidate.
    """

    passes: bool | None
    reason: str
    outlooks: tuple[CandidateOutlook, ...] = ()


class Judge:
    """Asks the twin about one proposal at a time; the caller feeds it with telemetry. `clock`: as for `TwinSelector`."""

    def __init__(self, twin: Twin, clock: Callable[[], float] | None = None) -> None:
        self._twin = twin
        self._clock = clock

    def case(self, current: Candidate, proposed: Candidate, since_s: float, now_s: float) -> Question | Ruling:
        """Returns what to replay, or a ruling at once if nothing can be replayed."""
        question = self._twin.question((current, proposed), since_s, now_s)
        return Ruling(None, f"the twin is silent: {question}") if isinstance(question, str) else question

    def compute(self, question: Question) -> Callable[[], Any]:
        """Returns the slow part: the replays."""
        return lambda: question.answer(self._clock)

    def rule(self, current: Candidate, proposed: Candidate, answer: Answer, *, sure: bool = False) -> Ruling:
        """Rules on a replay, together with earlier replays of both candidates.

        With `sure` the proposal must be better, by the margin of the twin's own proposals and beyond chance (`SURE_OF_ALL`).
        """
        self._twin.take(answer)
        outlooks = outlooks_of(weigh(self._twin, [current, proposed], current), current)
        if self._twin.silence:
            return Ruling(None, f"the twin is silent: {self._twin.silence}", outlooks)
        gain = self._twin.gain(proposed, current)
        if gain is None:
            return Ruling(None, "the twin is silent: too few requests were replayed under both", outlooks)
        if gain.error >= 1.0:
            return Ruling(None, "the twin is silent: too few requests were replayed under both to tell a difference", outlooks)
        against = f"{proposed.label} {gain.good:.1%} good against {gain.other_good:.1%}, {points(gain)}{self._twin.caveat}"
        if gain.share < -TOLERANCE:
            return Ruling(False, f"the twin expects it to be worse: {against}", outlooks)
        if sure and (gain.share < MARGIN or gain.share < SURE_OF_ALL * gain.error):
            return Ruling(False, f"the twin is not sure that it is better: {against}", outlooks)
        return Ruling(True, f"the twin does not expect it to be worse: {against}", outlooks)
