"""The digital twin as a selector: it proposes the policy that would have served the recent traffic best, if that is certain. Pure.

A simulation of the past does not prove the future. So a change must win a margin, win by more than chance, and also win under more load. If
the active candidate has no advantage left, the configured one returns: there may be no time for that later, when it is needed. If the twin
cannot tell, the rule map replaces it.
"""

from collections.abc import Callable, Sequence
from math import inf

import msgspec

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.base import Pending, Proposal, Reward, Selector, Situation
from hmas.agents.meta.twin.candidate_schedule import is_shipped
from hmas.agents.meta.twin.evidence import Gain
from hmas.agents.meta.twin.replay import STRESS
from hmas.agents.meta.twin.twin import MARGIN, Answer, Twin
from hmas.controller.core.messages import CandidateOutlook

SURE = 2.0
"""Standard errors that a gain must exceed."""
SURE_OF_SHIPPED = 1.5
"""The same of what is shipped, which many other loads speak for."""
HOME = MARGIN / 4
"""Share of requests by which what runs must be ahead of the configured candidate in order to stay."""

Weighed = tuple[Candidate, Gain]
"""A candidate and its gain over what runs."""
NONE = Gain(share=0.0, error=1.0, good=0.0, other_good=0.0)
"""The gain of a candidate without evidence."""


class TwinSelector:
    """Asks the twin, which the caller feeds with telemetry; `instead` proposes, at once, when the twin is silent.

    `clock`: in seconds with any origin, to measure what a replay costs; None if time stands still meanwhile.
    """

    name = "twin"
    trusted = True

    def __init__(self, twin: Twin, instead: Selector, clock: Callable[[], float] | None = None) -> None:
        self._twin = twin
        self._instead = instead
        self._clock = clock
        self._ahead: Candidate | None = None
        self._proposed: Candidate | None = None

    def propose(self, situation: Situation) -> Proposal | Pending:
        """Replays recent traffic, or falls back and gives the reason."""
        leader = self._leading(situation)
        stress_replayed = () if leader is None else (situation.current, leader)
        # Replays under more load take the places of some candidates that are due by rotation.
        current, routers = situation.current, situation.routers if self._twin.fleet.size > 1 else ()
        places = max(2, self._twin.places(situation.now_s, routed=bool(routers)) - len(stress_replayed))
        candidates = self._twin.candidates(current, situation.allowed, leader, places=places, start=situation.start, routers=routers)
        # While almost no request misses a target there is nothing to win. Only two candidates are then replayed: the plain baseline, whose
        # result should be known at any time, and the configured candidate, which may return.
        plain = self._twin.schedule.plain
        kept = [one for one in candidates if (one.policy == plain.policy and one.n_run) or one == situation.start]
        sparing = kept if leader is None else None
        question = self._twin.question(candidates, situation.since_s, situation.now_s, stress_replayed, sparing)
        if isinstance(question, str):
            return self._stand_in(situation, question)
        return Pending(
            compute=lambda: question.answer(self._clock),
            finish=lambda answer: self._choose(situation, answer),
            failed=lambda why: self._stand_in(situation, f"the replay broke: {why}"),
        )

    def learn(self, reward: Reward) -> None:
        """Does nothing: the twin learns from telemetry."""

    def _leading(self, situation: Situation) -> Candidate | None:
        """The candidate to replay again under more load: the last proposal, or without one the candidate that was ahead."""
        found = self._proposed or self._ahead
        allowed = found is not None and found.policy in situation.allowed and situation.may_route(found)
        return found if allowed and found != situation.current else None

    def _stand_in(self, situation: Situation, why: str) -> Proposal:
        said = self._instead.propose(situation)
        assert isinstance(said, Proposal), "who stands in for the twin answers at once"
        return msgspec.structs.replace(said, reason=f"{said.reason}; the twin is silent: {why}")

    def _choose(self, situation: Situation, answer: Answer) -> Proposal:
        twin, current = self._twin, situation.current
        twin.take(answer)
        weighed = weigh(twin, twin.evidence.fresh(), current)
        outlooks = outlooks_of(weighed, current)
        others = [(one, gain) for one, gain in weighed if one != current and one.policy in situation.allowed and situation.may_route(one)]
        worth = [pair for pair in others if self._is_worth_it(*pair, current)]
        self._ahead = max(worth, key=_share)[0] if worth else None
        standing = [pair for pair in worth if self._stands_stress(pair[0], current)]
        self._proposed = self._leader(standing)
        if twin.silence and self._proposed is None:
            return msgspec.structs.replace(self._stand_in(situation, f"{twin.silence}{self._set_aside(current)}"), candidates=outlooks)
        count = len(answer.outlooks)
        under = f"{count} candidates" if count != 1 else "the active one alone"
        told = f"{answer.requests} requests replayed under {under}: {self._told(standing or others, current)}"
        home = None if self._proposed is not None else next((pair for pair in others if pair[0] == situation.start), None)
        if home is not None and self._is_level(*home, current):
            self._proposed = situation.start
            told += f"; {current.label} is worth nothing any more over {self._proposed.label}, which is configured: {points(home[1])}"
        return Proposal(
            candidate=self._proposed or current,
            reason=told + self._set_aside(current) + twin.caveat,
            source=self.name,
            candidates=outlooks,
            evidence=self._evidence(current) | {"replay_s": answer.took_s},
        )

    def _told(self, leading: Sequence[Weighed], current: Candidate) -> str:
        """Describes the leading candidate, its lead, and why that is too little, if it is."""
        best, gain = next((pair for pair in leading if pair[0] == self._proposed), max(leading, key=_share, default=(current, NONE)))
        if gain.share <= 0.0:
            return f"none is expected to do better than {current.label}"
        told = f"{best.label} {gain.good:.1%} good against {gain.other_good:.1%}, {points(gain)}"
        if best not in (self._ahead, self._proposed):
            return told if gain.error >= 1.0 else f"{told}, too little for a change: it takes {MARGIN:.0%}, and more than chance"
        under = self._twin.gain_under_stress(best, current)
        return f"{told}; if {STRESS:.0%} more came, {points(under)}" if under is not None else told

    def _set_aside(self, current: Candidate) -> str:
        """Describes a candidate that is ahead but not proposed, and why; empty if there is none."""
        ahead = self._ahead
        if ahead is None or self._stands_stress(ahead, current):
            return ""
        under = self._twin.gain_under_stress(ahead, current)
        assert under is not None, "only what was replayed under more load fails there"
        return f"; {ahead.label}, which is ahead, would be no better if {STRESS:.0%} more came: {points(under)}"

    def _evidence(self, current: Candidate) -> dict[str, float]:
        """Returns the twin's supporting figures: the error of its replay of what ran, and the plain baseline's result."""
        twin = self._twin
        found: dict[str, float] = {}
        if twin.check is not None:
            found |= {"replayed_good": twin.check.replayed, "true_good": twin.check.true, "slower_than_replayed": twin.check.slower}
        plain = twin.gain(twin.schedule.plain, current)
        if plain is not None:
            found |= {"plain_good": plain.good, "plain_gain": plain.share, "plain_n_run": float(twin.schedule.plain.n_run)}
        return found

    def _leader(self, worth: Sequence[Weighed]) -> Candidate | None:
        """Returns the candidate with the highest gain.

        The last proposal is kept if it is as good within its error, so that meta settles on one of several good candidates.
        """
        if not worth:
            return None
        best, most = max(worth, key=_share)
        again = any(one == self._proposed and gain.share >= most.share - most.error for one, gain in worth)
        return self._proposed if again else best

    def _stands_stress(self, candidate: Candidate, current: Candidate) -> bool:
        """Whether it also looks better under more load. One without such a replay gets one before it can be proposed again."""
        under = self._twin.gain_under_stress(candidate, current)
        return under is None or under.share > 0.0

    def _is_level(self, home: Candidate, gain: Gain, current: Candidate) -> bool:
        """Whether the configured candidate is as good as what runs, also under more load."""
        under = self._twin.gain_under_stress(home, current)
        return not gain.brief and gain.share >= -HOME and (under is None or under.share >= -HOME)

    def _is_worth_it(self, candidate: Candidate, gain: Gain, current: Candidate) -> bool:
        """Whether a gain is certain and exceeds the margin; while the twin is silent, the margin is its replay's error.

        The plain baseline needs the margin too: a smaller gain in a calm is within the replays' error, and costs more in the next overload.
        At the beginning of an overload an order that serves all in turn looks best, because it is the last to miss targets. So only what is
        shipped may be chosen on brief evidence.
        """
        if gain.brief and not is_shipped(candidate, current):
            return False
        check, margin = self._twin.check, MARGIN
        if self._twin.silence:
            # Without a comparison with what happened, the replay's error is unknown.
            margin = abs(check.bias) if check is not None else inf
        sure = SURE_OF_SHIPPED if is_shipped(candidate, current) else SURE
        return gain.error < 1.0 and gain.share > 0.0 and gain.share >= max(margin, sure * gain.error)


def _share(weighed: Weighed) -> float:
    return weighed[1].share


def weigh(twin: Twin, candidates: Sequence[Candidate], current: Candidate) -> list[Weighed]:
    """Returns each candidate's gain over what runs; candidates without evidence are left out."""
    return [(one, gain) for one in candidates if (gain := twin.gain(one, current)) is not None]


def outlooks_of(weighed: Sequence[Weighed], current: Candidate) -> tuple[CandidateOutlook, ...]:
    """Returns the expected result of each candidate, best first."""
    found = [
        CandidateOutlook(
            policy=one.policy,
            parameters=one.parameters,
            n_run=one.n_run,
            router=one.router,
            good=round(gain.good, 4),
            gain=round(gain.share, 4),
            error=0.0 if one == current else round(gain.error, 4),
        )
        for one, gain in weighed
    ]
    return tuple(sorted(found, key=lambda outlook: -outlook.gain))


def points(gain: Gain) -> str:
    """Formats a gain in percentage points with its standard error; without enough replays there is none."""
    if gain.error >= 1.0:
        return f"{100.0 * gain.share:+.1f} points, from too few replays to tell it from chance"
    return f"{100.0 * gain.share:+.1f} ± {100.0 * gain.error:.1f} points"
