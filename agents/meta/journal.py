"""Records outcomes: it joins each decision with what happened afterwards and with what would have been best. Pure, bounded."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.evidence import Hindsight
from hmas.agents.meta.twin.twin import BIAS_MOST
from hmas.controller.core.messages import DecisionOutcome, LongView, MetaDecision, label_of

PENDING = (64, 4_096)
"""Bounds of the number of open decisions; within them, there is room for twice the span."""


@dataclass(frozen=True, slots=True)
class _Open:
    decision_id: str
    made_s: float
    candidate: Candidate
    expected: float


class DecisionJournal:
    """Decisions whose span is not over yet.

    Args:
        span_s: Time after a decision over which it is judged. It is the long view's window, so that the view's figures cover the span.
        hindsight: Returns from replays of a span which candidate was best and how the chosen one did; None without replays.
        period_s: Time between two decisions; it determines how many are remembered.
    """

    def __init__(
        self, span_s: float, hindsight: Callable[[Candidate, float, float], Hindsight | None] | None = None, *, period_s: float = 10.0
    ) -> None:
        least, most = PENDING
        self._span_s = span_s
        self._hindsight = hindsight
        self._open: deque[_Open] = deque(maxlen=min(most, max(least, ceil(2.0 * span_s / period_s))))

    def made(self, decision: MetaDecision, candidate: Candidate) -> None:
        """Records one of meta's own decisions."""
        told = {label_of(one.policy, one.parameters, one.n_run, one.router): one.good for one in decision.candidates}
        self._open.append(_Open(decision.decision_id, decision.sent_s, candidate, told.get(candidate.label, -1.0)))

    def ended(self, view: LongView, in_force: Candidate, since_s: float, now_s: float) -> Sequence[DecisionOutcome]:
        """Returns the outcomes of decisions whose span ends with this view.

        A decision that was replaced within its span has no outcome of its own, because it did not cause all of what happened.
        """
        found = []
        while self._open and self._open[0].made_s + self._span_s <= now_s:
            one = self._open.popleft()
            if one.candidate != in_force or since_s > one.made_s:
                continue
            until_s = one.made_s + self._span_s
            seen = self._hindsight(one.candidate, one.made_s, until_s) if self._hindsight is not None else None
            if seen is not None and abs(seen.chosen_good - view.goodput_rate) > BIAS_MOST:
                # What a replay says of others counts no more than what it says of what happened.
                seen = None
            found.append(
                DecisionOutcome(
                    sent_s=now_s,
                    decision_id=one.decision_id,
                    from_s=max(one.made_s, now_s - view.window_s),
                    until_s=now_s,
                    requests=view.ended,
                    good=view.goodput_rate,
                    expected=one.expected,
                    best=seen.best if seen is not None else "",
                    best_good=seen.best_good if seen is not None else 0.0,
                    chosen_good=seen.chosen_good if seen is not None else 0.0,
                )
            )
        return found

    def clear(self) -> None:
        """Drops all open decisions: an operator, a bypass or a restart has interrupted their spans."""
        self._open.clear()
