"""What the digital twin is asked and what it says: the window of late under every candidate, and which of them to believe in. Pure.

A simulation of the past is no proof of the future. So a change has to be worth a margin, and worth it in most parts of the window rather
than in one burst; and one that somebody else proposes is only held against what runs now.
"""

from collections.abc import Mapping, Sequence

import msgspec

from agents.meta.replay import Candidate, Gain, Outlook, Plant, gain, replay
from agents.meta.traffic import Asked
from controller.scheduling.outcomes import SchedulerSettings

REQUESTS_MIN = 60
"""Requests without which nothing is said: five a slot."""
SURE = 1.5
"""Standard errors that a gain must exceed to count as one: of a gain in one slot alone it is 1, in two alike just below this."""
TOLERANCE = 0.005
"""Share of requests by which a proposal may look worse and still pass: what the simulation cannot tell."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A window, a fleet, and what to try on them.

    Attributes:
        candidates: The first is what runs now.
        asked: Requests by rising arrival.
        lead_s: Begin of the window that only fills the queue.
    """

    candidates: tuple[Candidate, ...]
    asked: tuple[Asked, ...]
    plants: tuple[Plant, ...]
    settings: SchedulerSettings
    lead_s: float
    routing: str = "least-loaded"
    weights: Mapping[str, float] = {}

    def answer(self) -> list[Outlook]:
        """Replays them all, in their order; what takes long."""
        return [
            replay(
                self.asked,
                self.plants,
                candidate,
                settings=self.settings,
                lead_s=self.lead_s,
                routing=self.routing,
                weights=self.weights,
            )
            for candidate in self.candidates
        ]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    Attributes:
        take: The candidate to put in force, None to leave things as they are.
        reason: Why, in words with figures.
    """

    take: Candidate | None
    reason: str


def best_of(outlooks: Sequence[Outlook], margin: float) -> Verdict:
    """The best candidate, where it is better than the first by more than `margin` (share of requests) and by more than chance."""
    now = outlooks[0]
    best = max(outlooks, key=lambda outlook: outlook.good)
    won = gain(best, now)
    if best is now or won.share <= 0.0:
        return Verdict(take=None, reason=f"twin: nothing is expected to do better than {_told(now)} over {now.requests} requests")
    if won.share < margin or won.share < SURE * won.error:
        return Verdict(
            take=None, reason=f"twin: {_told(best)} is within {_points(won)} of {_told(now)}: less than {margin:.1%} or than chance"
        )
    return Verdict(take=best.candidate, reason=f"twin: {_told(best)} against {_told(now)}, {_points(won)} over {now.requests} requests")


def judge(outlooks: Sequence[Outlook]) -> Verdict:
    """Whether a proposal, the second outlook, may replace what runs now, the first: not where it is expected to be worse."""
    now, proposed = outlooks
    won = gain(proposed, now)
    against = f"{_told(proposed)} against {_told(now)}, {_points(won)} over {now.requests} requests"
    if won.share < -TOLERANCE:
        return Verdict(take=None, reason=f"the twin expects it to be worse: {against}")
    return Verdict(take=proposed.candidate, reason=f"the twin does not expect it to be worse: {against}")


def _told(outlook: Outlook) -> str:
    return f"{outlook.candidate.label} {outlook.good:.1%} good"


def _points(won: Gain) -> str:
    return f"{100.0 * won.share:+.1f} ± {100.0 * won.error:.1f} points"
