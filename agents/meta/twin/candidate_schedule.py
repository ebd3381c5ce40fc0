"""Which candidates a replay is worth: few enough that it may look far, and every one in its turn. Pure.

Replays overlap, and what they say is kept; so a candidate need not be looked at each time, and the time is better spent on a longer window:
what a policy puts off shows late. What runs is always replayed, for the others are compared with it, and so is who leads. Each of the
others has a period, long where it is hopeless, and the most overdue are looked at. The plain baseline (first come first served with the
best static window) comes with a neighbouring window, and moves there where that is better. Of what runs the parameters a step away are
looked at, so that from change to change they climb as long as that is worth one.
"""

from collections.abc import Callable, Collection
from math import inf

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.evidence import Gain
from hmas.controller.core.messages import OPEN_WINDOW

FAMILIES = ("fcfs", "robust-edf", "sjf", "two-lane", "wfq")
"""One policy of each kind (H-MAS C.2)."""
OFTEN = ("fcfs", "robust-edf", "sjf", "slack", "two-lane", "wfq")
"""Policies that are looked at often: one of each kind, and the paper's own order over the whole answer (Eq. 5)."""
STRICT = 0.25
"""Share of the TPOT guard that is looked at as often as the configured one: fewer prompts that hold up others."""
SHARES = (0.1, 1.0)
"""Shares that are looked at more seldom."""
HOPELESS = 3.0
"""Standard errors below what runs at which a candidate is only looked at seldom."""
CAPS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Static windows that are tried."""
MOST = 7
"""Candidates of one replay, what runs among them; one more where the plain baseline comes with its neighbour."""
REGULAR, SELDOM = 2, 8
"""Replays after which a candidate is to be looked at again: one of the regular ones or one that is ahead, and any other."""

GainOf = Callable[[Candidate, Candidate], Gain | None]


class CandidateSchedule:
    """What to look at next.

    Attributes:
        cap: Index of the best static window so far among `CAPS`.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._looked_at: dict[str, int] = {}
        self._up = True
        self.cap = CAPS.index(32)

    @property
    def plain(self) -> Candidate:
        """The plain baseline, with the best static window so far."""
        return Candidate(policy="fcfs", n_run=CAPS[self.cap])

    def choose(
        self,
        current: Candidate,
        pool: Collection[str],
        gain: GainOf,
        proposed: Candidate | None = None,
        *,
        places: int = MOST,
        guarded: bool = True,
        start: Candidate | None = None,
    ) -> tuple[Candidate, ...]:
        """Candidates for one replay.

        Args:
            current: What runs; the first of them.
            pool: Policies that may be looked at.
            gain: What is known of one candidate against another.
            proposed: Who was wished last time, and has to show it again.
            places: How many to look at, what runs among them; one more where the plain baseline comes with its neighbour.
            guarded: Whether there is a TPOT guard; one that is switched off stays off.
            start: What is configured, which may come back.
        """
        regular = [current.under(name) for name in OFTEN if name in pool]
        regular += [current.window(n_run) for n_run in (0, OPEN_WINDOW)]
        regular += [current.guarded(share) for share in (None, STRICT) if guarded]
        regular += [start] if start is not None and start.policy in pool else []
        others = [current.under(name) for name in sorted(pool) if name not in OFTEN]
        others += [current.guarded(share) for share in SHARES if guarded]
        others += current.neighbours()
        # Each once, by its label, at the shortest of its periods.
        periods = {one.label: (one, SELDOM) for one in others} | {one.label: (one, REGULAR) for one in (*regular, self.plain)}
        periods.pop(current.label, None)
        self._turn += 1
        gains = {label: gain(one, current) for label, (one, _) in periods.items()}
        # One that was never looked at has been overdue since before the first.
        waited = {label: self._turn - self._looked_at.get(label, 1 - SELDOM) for label in periods}
        overdue = {label: waited[label] / _period(gains[label], usual) for label, (_, usual) in periods.items()}
        ahead = {label: found.share for label, found in gains.items() if found is not None and found.share > 0.0}
        if ahead:
            overdue[max(ahead, key=lambda label: ahead[label])] = inf
        if proposed is not None and proposed.label in periods:
            overdue[proposed.label] = inf
        # Of equals the first named goes first.
        chosen = sorted(overdue, key=lambda label: -overdue[label])[: places - 1]
        if self.plain.label in (current.label, *chosen):
            # A window is only better or worse than another on the same traffic.
            periods[self._neighbour.label] = (self._neighbour, SELDOM)
            chosen = list(dict.fromkeys((*chosen[: places - 2], self.plain.label, self._neighbour.label)))
        self._looked_at = {label: self._looked_at[label] for label in periods if label in self._looked_at}
        self._looked_at |= dict.fromkeys(chosen, self._turn)
        return (current, *(periods[label][0] for label in chosen if label != current.label))

    def learn(self, looked_at: Collection[Candidate], gain: GainOf) -> None:
        """After a replay: moves to the neighbouring window where that was looked at and is better, else looks the other way next time."""
        tried = self._neighbour
        if tried not in looked_at:
            return
        found = gain(tried, self.plain)
        if found is not None and found.share > 0.0:
            self.cap = CAPS.index(tried.n_run)
        else:
            self._up = not self._up

    @property
    def _neighbour(self) -> Candidate:
        step = 1 if self._up else -1
        place = self.cap + step
        return Candidate(policy="fcfs", n_run=CAPS[place if 0 <= place < len(CAPS) else self.cap - step])


def _period(found: Gain | None, usual: int) -> int:
    """Replays until a candidate is to be looked at again, by what is known of it."""
    if found is None:
        return usual
    if found.share > 0.0:
        return REGULAR
    return SELDOM if found.error < 1.0 and found.share < -HOPELESS * found.error else usual
