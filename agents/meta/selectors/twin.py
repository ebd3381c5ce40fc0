"""The digital twin as a selector: the policy that would have served the traffic of late best, where that is sure. Pure.

A simulation of the past is no proof of the future. So a change has to be worth a margin, and more than chance; and where the twin cannot
say, the rule map stands in for it.
"""

from collections.abc import Callable, Sequence
from math import inf

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

Weighed = tuple[Candidate, Gain]
"""A candidate, and what is known of it against what runs."""


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
        self._wished: Candidate | None = None

    def propose(self, situation: Situation) -> Proposal | Pending:
        """Replays what came of late, or says why not."""
        candidates = self._twin.candidates(situation.current, situation.allowed, self._wished)
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
        twin, current = self._twin, situation.current
        twin.take(answer)
        weighed = weigh(twin, twin.evidence.fresh(), current)
        outlooks = outlooks_of(weighed, current)
        best, gain = self._best(situation, weighed)
        worth = gain is not None and self._is_worth_it(best, gain)
        self._wished = best if worth else None
        if twin.silence and not worth:
            return msgspec.structs.replace(self._stand_in(situation, twin.silence), candidates=outlooks)
        told = f"{answer.requests} requests replayed under {len(answer.outlooks)} policies"
        if gain is None or gain.share <= 0.0:
            reason = f"{told}: none is expected to do better"
        else:
            reason = f"{told}: {best.label} {gain.good:.1%} good against {gain.other_good:.1%}, {points(gain)}"
            reason += "" if worth else f": less than {MARGIN:.0%} or than chance"
        evidence = self._evidence(current) | {"replay_s": answer.took_s}
        return Proposal(candidate=best if worth else current, reason=reason, source=self.name, candidates=outlooks, evidence=evidence)

    def _evidence(self, current: Candidate) -> dict[str, float]:
        """What the twin stands on: how far its replay of what ran is from the truth, and how the plain baseline would have done."""
        twin = self._twin
        found: dict[str, float] = {}
        if twin.check is not None:
            found |= {"replayed_good": twin.check.replayed, "true_good": twin.check.true, "slower_than_replayed": twin.check.slower}
        plain = twin.gain(twin.menu.plain, current)
        if plain is not None:
            found |= {"plain_good": plain.good, "plain_gain": plain.share, "plain_n_run": float(twin.menu.plain.n_run)}
        return found

    def _best(self, situation: Situation, weighed: Sequence[Weighed]) -> tuple[Candidate, Gain | None]:
        """The candidate with the highest gain that is worth it, else the highest gain at all.

        What was wished last time is wished on where it is as good within its error, so that of several good ones one comes into force.
        """
        current = situation.current
        found = [pair for pair in weighed if pair[0] != current and pair[0].policy in situation.allowed]
        if not found:
            return current, None
        worth = [pair for pair in found if self._is_worth_it(*pair)]
        best = max(worth or found, key=lambda pair: pair[1].share)
        again = (pair for pair in worth if pair[0] == self._wished and pair[1].share >= best[1].share - best[1].error)
        return next(again, best)

    def _is_worth_it(self, candidate: Candidate, gain: Gain) -> bool:
        """Whether a change is sure, and wins a margin: where the twin is silent, more than its replay is off.

        The plain baseline needs none, for what does not beat it has no place.
        """
        check, plain = self._twin.check, self._twin.menu.plain
        margin = 0.0 if candidate == plain else MARGIN
        if self._twin.silence:
            # Never held against the truth, it may be off by anything.
            margin = abs(check.bias) if check is not None else inf
        return gain.error < 1.0 and gain.share > 0.0 and gain.share >= max(margin, SURE * gain.error)


def weigh(twin: Twin, candidates: Sequence[Candidate], current: Candidate) -> list[Weighed]:
    """What is known of each against what runs; those of which nothing is are left out."""
    return [(one, gain) for one in candidates if (gain := twin.gain(one, current)) is not None]


def outlooks_of(weighed: Sequence[Weighed], current: Candidate) -> tuple[CandidateOutlook, ...]:
    """What is expected of each, best first."""
    found = [
        CandidateOutlook(
            policy=one.policy,
            hints=one.hints,
            n_run=one.n_run,
            good=round(gain.good, 4),
            gain=round(gain.share, 4),
            error=0.0 if one == current else round(gain.error, 4),
        )
        for one, gain in weighed
    ]
    return tuple(sorted(found, key=lambda outlook: -outlook.gain))


def points(gain: Gain) -> str:
    """A gain in points with its standard error."""
    return f"{100.0 * gain.share:+.1f} ± {100.0 * gain.error:.1f} points"
