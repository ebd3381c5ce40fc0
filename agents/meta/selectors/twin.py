"""The digital twin as a selector: the policy that would have served the traffic of late best, where that is sure. Pure.

A simulation of the past is no proof of the future. So a change has to be worth a margin, and more than chance; and where the twin cannot
say, the rule map stands in for it.
"""

from collections.abc import Callable

import msgspec

from agents.meta.candidate import Candidate
from agents.meta.selectors.base import Pending, Proposal, Reward, Selector, Situation
from agents.meta.twin.evidence import Gain
from agents.meta.twin.twin import Answer, Twin
from controller.core.messages import CandidateOutlook

MARGIN = 0.01
"""Share of requests that a change has to win."""
SURE = 2.0
"""Standard errors that a gain must exceed."""


class TwinSelector:
    """Asks the twin; `instead` speaks where it is silent.

    Args:
        twin: Has to hear the telemetry from someone.
        instead: A selector that answers at once.
        clock: Seconds of any origin, to learn what a replay costs; None where time stands still meanwhile.
    """

    name = "twin"
    trusted = True

    def __init__(self, twin: Twin, instead: Selector, clock: Callable[[], float] | None = None) -> None:
        self._twin = twin
        self._instead = instead
        self._clock = clock

    def propose(self, situation: Situation) -> Proposal | Pending:
        """Replays what came of late, or says why not."""
        candidates = self._twin.candidates(situation.current, situation.allowed)
        question = self._twin.question(candidates, situation.since_s, situation.now_s)
        if isinstance(question, str):
            return self._stand_in(situation, question)
        return Pending(
            compute=lambda: question.answer(self._clock),
            finish=lambda answer: self._choose(situation, answer),
            failed=lambda why: self._stand_in(situation, f"the replay broke: {why}"),
        )

    def learn(self, reward: Reward) -> None:
        """The twin learns from telemetry alone."""

    def _stand_in(self, situation: Situation, why: str) -> Proposal:
        said = self._instead.propose(situation)
        assert isinstance(said, Proposal), "who stands in for the twin answers at once"
        return msgspec.structs.replace(said, reason=f"{said.reason}; the twin is silent: {why}")

    def _choose(self, situation: Situation, answer: Answer) -> Proposal:
        self._twin.take(answer)
        current = situation.current
        outlooks = outlooks_of(self._twin, [outlook.candidate for outlook in answer.outlooks], current)
        if self._twin.silence:
            return msgspec.structs.replace(self._stand_in(situation, self._twin.silence), candidates=outlooks)
        best, gain = self._best(situation, answer)
        told = f"{answer.requests} requests replayed under {len(answer.outlooks)} policies"
        if gain is None or gain.share <= 0.0:
            return Proposal(candidate=current, reason=f"{told}: none is expected to do better", source=self.name, candidates=outlooks)
        against = f"{best.label} {gain.good:.1%} good against {gain.other_good:.1%}, {points(gain)}"
        if gain.share < MARGIN or gain.share < SURE * gain.error:
            reason = f"{told}: {against}: less than {MARGIN:.0%} or than chance"
            return Proposal(candidate=current, reason=reason, source=self.name, candidates=outlooks)
        return Proposal(candidate=best, reason=f"{told}: {against}", source=self.name, candidates=outlooks)

    def _best(self, situation: Situation, answer: Answer) -> tuple[Candidate, Gain | None]:
        """The candidate with the highest gain that is sure, else the highest gain at all."""
        found = [
            (outlook.candidate, gain)
            for outlook in answer.outlooks[1:]
            if (gain := self._twin.gain(outlook.candidate, situation.current)) is not None
        ]
        if not found:
            return situation.current, None
        sure = [pair for pair in found if pair[1].share >= max(MARGIN, SURE * pair[1].error)]
        return max(sure or found, key=lambda pair: pair[1].share)


def outlooks_of(twin: Twin, candidates: list[Candidate], current: Candidate) -> tuple[CandidateOutlook, ...]:
    """What is expected of each, best first."""
    found = []
    for one in candidates:
        gain = twin.gain(one, current)
        if gain is not None:
            found.append(
                CandidateOutlook(
                    policy=one.policy,
                    hints=one.hints,
                    n_run=one.n_run,
                    good=round(gain.good, 4),
                    gain=round(gain.share, 4),
                    error=0.0 if one == current else round(gain.error, 4),
                )
            )
    return tuple(sorted(found, key=lambda outlook: -outlook.gain))


def points(gain: Gain) -> str:
    """A gain in points with its standard error."""
    return f"{100.0 * gain.share:+.1f} ± {100.0 * gain.error:.1f} points"
