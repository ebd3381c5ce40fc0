"""The twin as judge of what another selector proposes: it passes only what it does not expect to be worse than what runs. Pure.

Of a selector that is not trusted that is too little: where all serve alike nothing is worse, and whoever wants can change everything. Its
proposals have to be better, beyond what chance gives to who asks again and again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.twin import outlooks_of, points, weigh
from hmas.agents.meta.twin.twin import MARGIN, Answer, Question, Twin
from hmas.controller.core.messages import CandidateOutlook

TOLERANCE = 0.005
"""Share of requests by which a proposal may look worse and still pass: what the replay cannot tell."""

SURE_OF_ALL = 3.2
"""Standard errors that a proposal must win by which is not trusted. It may be made at every evaluation, and chance passes it some time:
sixty windows an hour stand apart, and one in twenty such hours is to see a false one (0.05 / 60)."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the judge says.

    Attributes:
        passes: Whether it is not expected to be worse; None where the twin cannot say.
        reason: Why, in words with figures.
        outlooks: What is expected of what runs and of what is proposed.
    """

    passes: bool | None
    reason: str
    outlooks: tuple[CandidateOutlook, ...] = ()


class Judge:
    """Asks the twin about one proposal at a time.

    Args:
        twin: Has to hear the telemetry from someone.
        clock: As for `TwinSelector`.
    """

    def __init__(self, twin: Twin, clock: Callable[[], float] | None = None) -> None:
        self._twin = twin
        self._clock = clock

    def case(self, current: Candidate, proposed: Candidate, since_s: float, now_s: float) -> Question | Ruling:
        """What to replay, or a ruling at once where nothing can be."""
        question = self._twin.question((current, proposed), since_s, now_s)
        return Ruling(None, f"the twin is silent: {question}") if isinstance(question, str) else question

    def compute(self, question: Question) -> Callable[[], Any]:
        """The long half."""
        return lambda: question.answer(self._clock)

    def rule(self, current: Candidate, proposed: Candidate, answer: Answer, *, sure: bool = False) -> Ruling:
        """The ruling of a replay, together with what earlier ones have said of both.

        Args:
            current: In force.
            proposed: Instead of it.
            answer: What the replay came to.
            sure: Whether it has to be better, by the margin of the twin's own proposals and beyond chance (`SURE_OF_ALL`).
        """
        self._twin.take(answer)
        outlooks = outlooks_of(weigh(self._twin, [current, proposed], current), current)
        if self._twin.silence:
            return Ruling(None, f"the twin is silent: {self._twin.silence}", outlooks)
        gain = self._twin.gain(proposed, current)
        if gain is None:
            return Ruling(None, "the twin is silent: too few requests were replayed under both", outlooks)
        against = f"{proposed.label} {gain.good:.1%} good against {gain.other_good:.1%}, {points(gain)}"
        if gain.share < -TOLERANCE:
            return Ruling(False, f"the twin expects it to be worse: {against}", outlooks)
        if sure and (gain.share < MARGIN or gain.share < SURE_OF_ALL * gain.error):
            return Ruling(False, f"the twin is not sure that it is better: {against}", outlooks)
        return Ruling(True, f"the twin does not expect it to be worse: {against}", outlooks)
